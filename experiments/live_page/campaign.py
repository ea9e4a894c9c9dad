"""Notes on the live page about the progress of a campaign."""

from __future__ import annotations

from experiments.generator.ledger import Ledger
from experiments.live_page.process import LivePage
from experiments.results.directory import Campaign, PlannedRun
from experiments.run_data import Run
from experiments.running.runner import Observer


class CampaignOnPage:
    """Observer that reports to the page, and passes everything on to `observer`."""

    def __init__(self, page: LivePage, campaign: Campaign, observer: Observer) -> None:
        self._page = page
        self._campaign = campaign
        self._observer = observer
        self._blocks = 1 + max((planned.block for planned in campaign.plan), default=0)
        self._done = 0

    def machine_busy(self, planned: PlannedRun, taken: float) -> None:
        """Show that the run waits."""
        self._note(f"{self._where(planned)} · waits: others use {taken:.1%} of the machine's processors")
        self._observer.machine_busy(planned, taken)

    def run_started(self, planned: PlannedRun) -> None:
        """Show policy and block."""
        self._note(self._where(planned))
        self._observer.run_started(planned)

    def load_started(self, ledger: Ledger) -> None:
        """Show the scenario's events from now on."""
        self._page.schedule(self._campaign.scenario)
        self._observer.load_started(ledger)

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        """Count a run; one that is repeated is counted once."""
        self._done = self._campaign.plan.index(planned) + 1
        self._note(f"{self._where(planned)} has ended")
        self._observer.run_ended(planned, run)

    def _where(self, planned: PlannedRun) -> str:
        return f"{planned.label}, block {planned.block + 1} of {self._blocks}"

    def _note(self, text: str) -> None:
        self._page.note(self._campaign.scenario.name, text, self._done, len(self._campaign.plan))
