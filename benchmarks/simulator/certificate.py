"""`benchmarks certificate`: compare the simulator with closed forms of queueing theory."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.simulator.cases import Case, cases
from experiments.terminal import console_here

SEED = 1
FAILED = 1


def present_certificate(
    samples: float, console: Console | None = None, chosen: Sequence[Case] | None = None
) -> int:
    """Simulate every case with `samples` times the usual number, print a table; returns 1 if any is out of bounds."""
    console = console if console is not None else console_here()
    table = Table(
        title="Simulated beside closed forms", caption=f"seed {SEED}, {samples:g} times the usual samples"
    )
    for heading in ("system", "theory", "simulated", "off by", "allowed", "requests", "s"):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    started_at, found = time.monotonic(), cases() if chosen is None else chosen
    misses = 0
    for number, case in enumerate(found):
        console.print(progress(number, len(found), time.monotonic() - started_at, case), highlight=False)
        misses += add_row(table, case, samples)
    console.print(table)
    console.print(f"{len(found) - misses} of {len(found)} within their bounds.", highlight=False)
    return FAILED if misses else 0


def progress(number: int, count: int, elapsed: float, case: Case) -> str:
    """Progress line: case number, estimated seconds left and name."""
    left = f", about {elapsed / number * (count - number):.0f} s left" if number else ""
    return f"[{number + 1}/{count}{left}] {case.name}"


def add_row(table: Table, case: Case, samples: float) -> bool:
    """Simulate a case and add its row; returns whether it is out of its bound."""
    count, began_at = max(1, round(case.samples * samples)), time.process_time()
    simulated = case.simulated(count, SEED)
    error = case.error(simulated)
    is_off = not abs(error) <= case.bound
    table.add_row(
        case.name,
        f"{case.theory:.4f}",
        f"{simulated:.4f}",
        Text(f"{error:+.2%}", style="bold red" if is_off else ""),
        f"{case.bound:.0%}",
        f"{count:,}",
        f"{time.process_time() - began_at:.1f}",
        end_section=False,
    )
    return is_off
