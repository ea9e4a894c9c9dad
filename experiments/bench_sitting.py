"""A sitting at the terminal: carry the runs out, print table and verdicts, write the file, decide the exit code.

Rule of this file: however it ends, nothing that was started is left running, and what was measured is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from experiments.bench_runs import WORKERS, Plan, Run, carry_out
from experiments.bench_table import FULL_WIDTH, Verdict, blocks_in_words, doubts, rows_of, table_of, verdicts
from experiments.errors import BadInputError
from experiments.peers import PEERS, Peer, worker_name
from experiments.progress import clock

STOPPED = 130
BOUND_MISSED = 1
PACKAGES = ("steelyard", "aiohttp", "uvloop", "httptools")


class Progress:
    """What is seen meanwhile, and what has been measured so far. It draws little: drawing costs processor time."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.runs: list[Run] = []
        self._total = plan.blocks * len(plan.peers)
        self._console = console
        self._began_at = time.monotonic()
        self._status = Status("starting the worker", console=console, refresh_per_second=2)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def run_started(self, block: int, peer: Peer) -> None:
        left = ""
        if done := len(self.runs):
            left = f", left {clock((time.monotonic() - self._began_at) / done * (self._total - done))}"
        self._status.update(f"block {block + 1}: {peer.name}{left}")

    def run_ended(self, run: Run) -> None:
        self.runs.append(run)
        found = f"INVALID: {run.fault}" if run.fault else f"{run.cost:.1f} µs, {run.rate:.0f}/s"
        line = f"[{len(self.runs)}/{self._total}] block {run.block + 1}, {run.peer}: {found}"
        self._console.print(Text(line, style="red" if run.fault else "dim"))


def conduct(plan: Plan, absent: dict[str, str], file: Path | None, is_checked: bool) -> int:
    """Measure, print, write; returns the exit code. Raises ExperimentError."""
    console = console_here()
    console.print(Text(introduction(plan)))
    was_stopped = False
    with tempfile.TemporaryDirectory(prefix="steelyard-") as folder, Progress(plan, console) as progress:
        try:
            asyncio.run(interruptible(plan, Path(folder), progress))
        except (asyncio.CancelledError, KeyboardInterrupt):
            was_stopped = True
    found = verdicts(progress.runs) if plan.case.is_bounded else []
    present(console, progress.runs, found, absent)
    if file is not None:
        write(file, document(plan, progress.runs, found, absent, was_stopped))
    if was_stopped:
        console.print("[yellow]Stopped.[/] Nothing was left running; the table holds what had been measured.")
        return STOPPED
    return BOUND_MISSED if is_checked and any(verdict.met is False for verdict in found) else 0


def console_here() -> Console:
    """A file has room for every column, whatever the terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, FULL_WIDTH))


async def interruptible(plan: Plan, folder: Path, progress: Progress) -> None:
    """The runs as a task that the first Ctrl-C or SIGTERM cancels; later ones wait until all has been ended."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await carry_out(plan, folder, progress)


def introduction(plan: Plan) -> str:
    """What is going to be measured, in words that hold for the figures that follow."""
    load = "wrk" if plan.wrk else "our own generator, as wrk is not on the PATH"
    place = (
        f"proxy, worker and load share core {plan.proxy_core}: nobody is woken on another core"
        if plan.proxy_core == plan.rest_core
        else f"proxy alone on core {plan.proxy_core}, worker and load on core {plan.rest_core}"
    )
    return (
        f"CPU per forwarded {plan.case.words}: user and system time of the proxy's process tree over requests.\n"
        f"{blocks_in_words(plan.blocks)} × {len(plan.peers)} units × {plan.seconds:g} s, "
        f"{plan.connections} connections, {WORKERS} endpoints, seed {plan.seed}.\n"
        f"Load: {load}; worker: {worker_name()}; {place}.\n"
        f"Ours: {build_in_words()}.\n"
    )


def build_in_words() -> str:
    """Which form of the forwarding unit is installed here."""
    spec = find_spec("balancer.exchange")
    is_pure = spec is None or (spec.origin or "").endswith(".py")
    return "the pure source ('make bench' measures the compiled build)" if is_pure else "the compiled build"


def present(console: Console, runs: list[Run], found: list[Verdict], absent: dict[str, str]) -> None:
    """The table, who is missing from it, and how the bounds stand."""
    rows = rows_of(runs)
    if rows:
        console.print(table_of(rows, console.width))
    for row in rows:
        if row.fault:
            console.print(Text(f"INVALID: {row.peer} ({row.fault})", style="bold red"))
    for name, reason in absent.items():
        console.print(Text(f"absent: {name} ({reason})"))
    if doubt := doubts(runs):
        console.print(Text(doubt, style="yellow"))
    styles = {True: "green", False: "bold red", None: "yellow"}
    for verdict in found:
        console.print(Text(str(verdict), style=styles[verdict.met]))


def document(
    plan: Plan, runs: list[Run], found: list[Verdict], absent: dict[str, str], was_stopped: bool
) -> dict[str, Any]:
    """Everything, for another program."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions(plan),
        "plan": asdict(plan) | {"peers": [peer.name for peer in plan.peers], "worker": worker_name()},
        "was_stopped": was_stopped,
        "absent": absent,
        "units": [asdict(row) for row in rows_of(runs)],
        "bounds": [asdict(verdict) for verdict in found],
        "runs": [asdict(run) | {"cost": run.cost} for run in runs],
    }


def versions(plan: Plan) -> dict[str, str]:
    """Of Python, its packages that matter here, and the programs that took part."""
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    programs = {peer.program: peer.version for peer in PEERS.values() if peer.program and not peer.absence}
    for program, option in programs.items() | ({(plan.wrk, "-v")} if plan.wrk else set()):
        found[Path(program).name] = version_of(program, option)
    return found


def version_of(program: str, option: str) -> str:
    """The first thing in its words that looks like a version."""
    said = subprocess.run([program, option], capture_output=True, text=True, check=False, timeout=10)
    number = re.search(r"\d+\.\d+(\.\d+)?", said.stdout + said.stderr)
    return number[0] if number else "unknown"


def write(file: Path, content: dict[str, Any]) -> None:
    """Raises BadInputError when the file cannot be written."""
    try:
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"--json: {file}: {error.strerror}") from None
