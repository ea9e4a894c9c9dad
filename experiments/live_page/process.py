"""The live page of an experiment, as the experiment uses it: start its process, and say what happens."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from balancer.syntax.networks import is_this_machine
from experiments.errors import BadInputError
from experiments.generator.ledger import Ledger
from experiments.platform.control import url_of
from experiments.platform.processes import GRACE, READY, environment, program
from experiments.results.directory import Campaign, PlannedRun
from experiments.run_data import Run
from experiments.running.runner import Observer
from experiments.scenario.events import Event
from experiments.scenario.scenario import Scenario

LOCAL = "127.0.0.1"


class LivePage:
    """Context manager that serves the page at `address`, `[HOST:]PORT`; `url` is its address in a browser.

    Raises `BadInputError` when the address is not one of this machine, or is taken.
    """

    def __init__(self, address: str) -> None:
        self._host, self._port = host_and_port(address)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        argv = [*program("experiments.live_page.server"), self._host, str(self._port)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=environment()
        )
        self._process = process
        try:
            assert process.stdout is not None
            found = READY.search(process.stdout.readline())
            if found is None:
                lines = process.communicate()[1].decode(errors="replace").strip().splitlines()
                raise BadInputError(f"--page: {lines[-1] if lines else 'its process has ended'}")
        except BaseException:
            self.__exit__()
            raise
        self.url = found[1].decode()
        return self

    def __exit__(self, *_: object) -> None:
        """End the process by closing its standard input."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    @contextmanager
    def following(self, address: tuple[str, int]) -> Iterator[None]:
        """Show the balancer at `address` within the block, and "between runs" after it."""
        self.follow(url_of(address, ""))
        try:
            yield
        finally:
            self._send({"follow": None})

    def follow(self, url: str, token: str | None = None, cluster: str | None = None) -> None:
        """Show a cluster of the balancer at `url`."""
        self._send({"follow": {"url": url, "token": token, "cluster": cluster}})

    def note(self, title: str, text: str, done: int = 0, total: int = 0) -> None:
        """Show a line above the charts, and a bar where there is a total."""
        self._send({"note": {"title": title, "text": text, "done": done, "total": total}})

    def schedule(self, scenario: Scenario) -> None:
        """Show the scenario's events as they begin and end; its load starts now."""
        scale = scenario.time_scale
        moments = [(at * scale, text) for event in scenario.events for at, text in moments_of(event)]
        self._send({"events": sorted(moments)})

    def end(self) -> None:
        """Show that the experiment has ended; the last note stays."""
        self._send({"end": True})

    def _send(self, command: dict[str, Any]) -> None:
        """Write a command; a page that has ended is no reason to stop an experiment."""
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()


def host_and_port(address: str) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`. Raises `BadInputError`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOCAL
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInputError(f"--page: must be [HOST:]PORT, such as 9180 or 127.0.0.1:9180, got {address!r}")
    if not is_this_machine(host):
        raise BadInputError(
            f"--page: {host} is not an address of this machine alone, and the page has no login; "
            "use 127.0.0.1, and from elsewhere `ssh -L`"
        )
    return host, int(port)


def moments_of(event: Event) -> list[tuple[float, str]]:
    """Instants, in seconds of the scenario, at which an event begins and ends, each with a text."""
    amount = f" {event.amount:g}" if event.amount else ""
    name = f"{event.kind}{amount} of {event.target}"
    begins = [(event.at, f"{name} begins")]
    return begins if event.lasts is None else [*begins, (event.at + event.lasts, f"{name} ends")]


class CampaignOnPage(Observer):
    """Observer that reports the progress of a campaign to the page."""

    def __init__(self, page: LivePage, campaign: Campaign) -> None:
        self._page = page
        self._campaign = campaign
        self._done = 0

    def machine_busy(self, planned: PlannedRun, taken: float) -> None:
        self._note(planned, f" · waits: others use {taken:.1%} of the machine's processors")

    def run_started(self, planned: PlannedRun) -> None:
        self._note(planned)

    def load_started(self, ledger: Ledger) -> None:
        """Show the scenario's events from now on."""
        self._page.schedule(self._campaign.scenario)

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        """Count a run; one that is repeated is counted once."""
        self._done = self._campaign.plan.index(planned) + 1
        self._note(planned, " has ended")

    def _note(self, planned: PlannedRun, what: str = "") -> None:
        plan = self._campaign.plan
        where = f"{planned.label}, block {planned.block + 1} of {plan[-1].block + 1}"
        self._page.note(self._campaign.scenario.name, where + what, self._done, len(plan))
