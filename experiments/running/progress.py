"""Progress of a campaign: a live panel on a terminal, otherwise one line per run.

Read-only. The panel is drawn a few times per second, because drawing costs processor time that belongs to the
measurement.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import fmean

from rich.console import Console, Group
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments.generator.ledger import Ledger
from experiments.platform.terminal import LivePanel, clock, in_ms, rate_digits
from experiments.results.directory import Campaign, PlannedRun
from experiments.run_data import Run
from experiments.running.runner import Observer
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import LiveScenario, ServiceScenario
from experiments.stats.measures import percentile, statistics_row, success_latency
from experiments.verdict.phrases import tail_text

OVERHEAD = 6.0
"""Initial estimate of the seconds that starting, warming and stopping a fleet take."""


class CampaignProgress(LivePanel, Observer):
    """Campaign observer that shows a live panel if the console is a terminal; used as a context manager."""

    def __init__(self, campaign: Campaign, console: Console) -> None:
        super().__init__(console)
        self._campaign = campaign
        self._began_at = self._run_began_at = time.monotonic()
        self._ended = dict[PlannedRun, float]()
        self._current: PlannedRun | None = None
        self._ledger: Ledger | None = None
        self._taken: float | None = None

    def machine_busy(self, planned: PlannedRun, taken: float) -> None:
        """Record that the run waits for a quiet machine; printed once where there is no panel."""
        if self._taken is None and not self._console.is_terminal:
            self._console.print(f"waiting: {others_take(taken)}", highlight=False)
        self._current, self._taken = planned, taken

    def run_started(self, planned: PlannedRun) -> None:
        self._current, self._taken = planned, None

    def load_started(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        """Print the run's result as one line."""
        now = time.monotonic()
        took = now - self._run_began_at
        self._ended[planned] = self._ended.get(planned, 0.0) + took  # added up: a disturbed run is repeated
        self._current, self._ledger, self._run_began_at = None, None, now
        line = run_line(self._campaign, len(self._ended), run).append(f"  left {self._left(0.0)}")
        self._console.print(line)

    def panel(self) -> Group:
        """Panel with position, elapsed and remaining time, and facts about the current run."""
        total, done = len(self._campaign.plan), len(self._ended)
        elapsed = time.monotonic() - self._began_at
        left = self._left(time.monotonic() - self._run_began_at)
        head = Text(f"run {min(done + 1, total)} of {total}   elapsed {clock(elapsed)}   left {left}")
        bar = ProgressBar(total=total or 1, completed=done, width=60)
        table = Table.grid(padding=(0, 3))
        for name, value in self._current_facts():
            table.add_row(Text(name, style="dim"), value)
        return Group(head, Padding(bar), table)

    def _left(self, current: float) -> str:
        """Remaining time; a dash before the first simulated run, since only real runs have an expected duration."""
        if self._campaign.world == "simulated" and not self._ended:
            return "–"
        return clock(remaining(self._campaign, self._ended, current))

    def _current_facts(self) -> list[tuple[str, str]]:
        planned, ledger = self._current, self._ledger
        if planned is None:
            return []
        title = [("entry", f"{planned.label}, block {planned.block + 1}")]
        if self._taken is not None:
            return [*title, ("waiting", others_take(self._taken))]
        if ledger is None:
            is_simulated = self._campaign.world == "simulated"
            words = "simulating" if is_simulated else in_progress(self._campaign.scenario)
            return [*title, ("state", words)]
        return [*title, *live_facts(self._campaign.scenario, planned, ledger)]


def live_facts(scenario: Scenario, planned: PlannedRun, ledger: Ledger) -> list[tuple[str, str]]:
    """(name, value) facts about the current run over its last second."""
    entry = scenario.entry(planned.label)
    load = scenario.load_of(entry)
    rate, p50, p95 = ledger.recent(time.monotonic())
    offered = (
        f"batch {load.batch}"
        if load.mode == "closed"
        else f"{rate_digits(load.mean_rate / scenario.time_scale)}/s"
    )
    return [
        ("sent", f"{len(ledger)} of {load.planned}"),
        ("offered / answered", f"{offered} / {rate_digits(rate)}/s"),
        ("in flight", str(ledger.in_flight)),
        ("last second", f"p50 {in_ms(p50)}, p95 {in_ms(p95)}"),
        ("errors", ", ".join(f"{kind} {count}" for kind, count in ledger.failures.items()) or "none"),
        ("generator lag", f"{ledger.recent_lag() * 1e3:.2f} ms"),
    ]


def in_progress(scenario: Scenario) -> str:
    """What a run does before its load starts; that of a live evaluation is there all the time."""
    if isinstance(scenario, LiveScenario):
        return "observing the balancer's own traffic"
    return "warming up" if isinstance(scenario, ServiceScenario) else "starting and warming the fleet"


def others_take(part: float) -> str:
    """Describe the steal fraction `part` (0..1)."""
    return f"others take {part:.1%} of the machine's processors"


def run_line(campaign: Campaign, number: int, run: Run) -> Text:
    """Result line such as `[3/8] region-aware: 156/s, p50 494 ms, p99 826 ms, 0 failed`."""
    row, facts = statistics_row([run]), run.facts
    latency = success_latency([run])
    tail = tail_text(len(latency), lambda part: percentile(latency, 100 * part))
    line = Text.assemble(
        f"[{number}/{len(campaign.plan)}] ",
        (facts.label, "bold"),
        f": {rate_digits(row.rate)}/s, p50 {in_ms(row.p50)}{tail}, {row.ko} failed",
    )
    if not facts.is_valid:
        line.append(f"  INVALID: {'; '.join(facts.invalid_reasons)}", "bold red")
    return line


def remaining(campaign: Campaign, ended: Mapping[PlannedRun, float], current: float) -> float:
    """Remaining seconds: the expected time of the runs to come, corrected by the past ratio of actual to expected."""
    expected = {planned: expected_seconds(campaign.scenario, planned) for planned in campaign.plan}
    past = sum(expected[planned] for planned in ended)
    correction = sum(ended.values()) / past if past else 1.0
    return max(0.0, correction * (sum(expected.values()) - past) - current)


def expected_seconds(scenario: Scenario, planned: PlannedRun) -> float:
    """Rough estimate of one run's seconds, fleet included; for a closed loop from its mean round trip."""
    entry = scenario.entry(planned.label)
    load = scenario.load_of(entry)
    if isinstance(scenario, LiveScenario):
        return scenario.period
    if isinstance(scenario, ServiceScenario):
        return scenario.service.warmup + load.duration
    if load.mode == "open":
        return OVERHEAD + load.duration * scenario.time_scale
    round_trip = fmean(region.rtt for region, _ in scenario.numbered_workers)
    return OVERHEAD + scenario.time_scale * (1 + load.requests / load.batch) * max(round_trip, 0.02)
