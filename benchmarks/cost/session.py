"""Terminal session of the cost benchmark: run, print tables and verdicts, write the file, choose the exit code.

However it ends, no process is left running and the results so far are shown.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from benchmarks.cost.bounds import Verdict, blocks_in_words, table_of_bounds, verdicts
from benchmarks.cost.plan import Plan, Run
from benchmarks.cost.runs import run_plan
from benchmarks.cost.table import doubts, rows_of, shown, table_of
from benchmarks.harness.cases import CASES, Kind
from benchmarks.harness.peers import PEERS, WORKER_PORTS, Peer, worker_name
from benchmarks.harness.session import exit_code, was_interrupted
from experiments.build import describe_build, interpreter_in_words
from experiments.terminal import clock, console_here, write_json

PACKAGES = ("steelyard", "aiohttp", "uvloop", "httptools")


@dataclass(frozen=True, slots=True)
class Session:
    """All plans, one for each case; absent peers with reasons; the output file."""

    plans: tuple[Plan, ...]
    absent: dict[str, str]
    file: Path | None
    is_checked: bool


class Progress:
    """Progress display and the runs so far. Redraws rarely, because drawing uses CPU time."""

    def __init__(self, plans: Sequence[Plan], console: Console) -> None:
        self.runs: list[Run] = []
        self._total = sum(plan.blocks * len(plan.peers) for plan in plans)
        self._console = console
        self._began_at = time.monotonic()
        self._status = Status("starting the worker", console=console, refresh_per_second=2)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def said(self, text: str) -> None:
        self._console.print(Text(text))

    def run_started(self, block: int, peer: Peer) -> None:
        left = ""
        if done := len(self.runs):
            left = f", left {clock((time.monotonic() - self._began_at) / done * (self._total - done))}"
        self._status.update(f"block {block + 1}: {peer.name}{left}")

    def run_ended(self, run: Run) -> None:
        self.runs.append(run)
        line = f"[{len(self.runs)}/{self._total}] block {run.block + 1}, {run.peer}: {found_in_words(run)}"
        self._console.print(Text(line, style="red" if run.fault or run.void else "dim"))


def found_in_words(run: Run) -> str:
    """Result of a run as a line of text."""
    if run.fault or run.void:
        return f"INVALID: {run.fault}" if run.fault else f"void: {run.void}"
    kind = CASES[run.case].kind
    rate = "" if kind is Kind.MEMORY else f", {run.rate:.0f}/s"
    return f"{shown(run.figure, kind)} {kind.value}{rate}"


def run_session(session: Session) -> int:
    """Measure, print, write; returns the exit code. Raises `ExperimentError`."""
    console = console_here()
    with Progress(session.plans, console) as progress:
        was_stopped = was_interrupted(lambda: measure(session.plans, progress, console))
    found = verdicts(progress.runs)
    present(console, session, progress.runs, found)
    if session.file is not None:
        write_json("--json", session.file, document(session, progress.runs, found, was_stopped))
    rest = "Nothing was left running; the tables hold what had been measured."
    return exit_code(console, was_stopped, session.is_checked, [verdict.met for verdict in found], rest)


async def measure(plans: Sequence[Plan], progress: Progress, console: Console) -> None:
    """Run all cases in order."""
    console.print(Text(f"Python: {interpreter_in_words()}.\nOurs: {describe_build()}."))
    for plan in plans:
        console.print(Text(introduction(plan)))
        with tempfile.TemporaryDirectory(prefix="steelyard-") as folder:
            await run_plan(plan, Path(folder), progress)


def introduction(plan: Plan) -> str:
    """Text printed before a case: what is measured, blocks, connections, load and core assignment."""
    place = place_in_words(plan)
    sizes = plan.case.sizes
    endpoints = f"{sizes[0][0]} to {sizes[-1][0]}" if sizes else f"{WORKER_PORTS}"
    busy = ", ".join(dict.fromkeys(str(peer.connections or plan.connections) for peer in plan.peers))
    return (
        f"\n{plan.case.name}: {what_is_measured(plan)}\n"
        f"{blocks_in_words(plan.blocks)} × {len(plan.peers)} proxies × {plan.seconds:g} s, "
        f"{busy} connections, {endpoints} endpoints, seed {plan.seed}.\n"
        f"Load: {load_in_words(plan)}; worker: {worker_name()}; {place}.\n"
    )


def place_in_words(plan: Plan) -> str:
    """Core assignment as text."""
    if plan.proxy_core == plan.rest_core:
        return f"proxy, worker and load share core {plan.proxy_core}: no wake-up crosses cores"
    if plan.is_load_alone:
        return f"proxy and worker share core {plan.proxy_core}, load alone on core {plan.rest_core}"
    return f"proxy alone on core {plan.proxy_core}, worker and load on core {plan.rest_core}"


def load_in_words(plan: Plan) -> str:
    """Load generator as text."""
    load = "wrk" if plan.wrk else "our own generator, as wrk is not on the PATH"
    return {
        Kind.COST: load,
        Kind.TAIL: f"{load} for the capacity, then an open loop of our own",
        Kind.MEMORY: "connections of the bench itself",
    }[plan.case.kind]


def what_is_measured(plan: Plan) -> str:
    """Figure of the case as a sentence."""
    words = plan.case.words
    return {
        Kind.COST: f"CPU per forwarded {words}: user and system time of the proxy's process tree over requests.",
        Kind.TAIL: f"99th percentile of latency, {words} of the slowest, open loop, from being due.",
        Kind.MEMORY: f"memory per {words} that has made one request: growth of the proxy's PSS.",
    }[plan.case.kind]


def present(console: Console, session: Session, runs: list[Run], found: list[Verdict]) -> None:
    """Print a table for each case, the absent peers and the table of bounds."""
    for plan in session.plans:
        own = [run for run in runs if run.case == plan.case.name]
        rows = rows_of(own)
        if rows:
            console.print(Text(f"{plan.case.name}: {plan.case.words}", style="bold"))
            console.print(table_of(rows, plan.case.kind, console.width))
        for row in rows:
            if row.fault:
                console.print(Text(f"INVALID: {row.peer} ({row.fault})", style="bold red"))
    for name, reason in session.absent.items():
        console.print(Text(f"absent: {name} ({reason})"))
    if doubt := doubts(runs):
        console.print(Text(doubt, style="yellow"))
    if found:
        console.print(table_of_bounds(found))


def document(session: Session, runs: list[Run], found: list[Verdict], was_stopped: bool) -> dict[str, Any]:
    """Complete results for JSON."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.release()} {platform.machine()}",
        "interpreter": interpreter_in_words(),
        "build": describe_build(),
        "versions": versions(session.plans[0]),
        "was_stopped": was_stopped,
        "absent": session.absent,
        "cases": [case_document(plan, runs) for plan in session.plans],
        "bounds": [asdict(verdict) for verdict in found],
        "runs": [asdict(run) for run in runs],
    }


def case_document(plan: Plan, runs: list[Run]) -> dict[str, Any]:
    """Results of one case: its plan and a row for each peer."""
    described = asdict(plan.case) | {"kind": plan.case.kind.value}
    own = [run for run in runs if run.case == plan.case.name]
    peers = [peer.name for peer in plan.peers]
    return {
        "plan": asdict(plan) | {"case": described, "peers": peers, "worker": worker_name()},
        "proxies": [asdict(row) for row in rows_of(own)],
    }


def versions(plan: Plan) -> dict[str, str]:
    """Versions of Python, relevant packages and programs."""
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    programs = {peer.program: peer.version for peer in PEERS.values() if peer.program and not peer.absence}
    for program, option in programs.items() | ({(plan.wrk, "-v")} if plan.wrk else set()):
        found[Path(program).name] = version_of(program, option)
    return found


def version_of(program: str, option: str) -> str:
    """First string in the program's version output that looks like a version."""
    said = subprocess.run([program, option], capture_output=True, text=True, check=False, timeout=10)
    number = re.search(r"\d+\.\d+(\.\d+)?", said.stdout + said.stderr)
    return number[0] if number else "unknown"
