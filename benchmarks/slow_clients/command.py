"""`python -m benchmarks slow-clients`: latency of normal traffic beside a thousand slow senders or readers.

Only parses options, builds the plan and prints; invalid input is refused before any process starts.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from benchmarks.harness import peers
from benchmarks.harness.options import Seconds, cores_for, generator_core, known_policies, names_in
from benchmarks.harness.session import exit_code, run_in_folder
from benchmarks.harness.verdicts import print_verdicts
from benchmarks.slow_clients.runs import Plan, Run, run_plan
from benchmarks.slow_clients.stalled import Stalled, stalled
from benchmarks.slow_clients.table import doubts, rows_of, table_of, verdicts
from experiments.build import describe_build
from experiments.terminal import (
    console_here,
    require_writable,
    write_json,
)

EPILOG = """\b
Examples:
  python -m benchmarks slow-clients                          Steelyard alone, about five minutes
  python -m benchmarks slow-clients --peers nginx,haproxy --rounds 3
  python -m benchmarks slow-clients --clients 200 --pace 100ms --duration 2s
  python -m benchmarks slow-clients --stalled                what one stalled reader of 1 GiB costs
  python -m benchmarks slow-clients --check                  exit code 1 when a bound is missed
"""


@click.command(name="slow-clients", epilog=EPILOG)
@click.option("--clients", type=click.IntRange(1, 8000), default=1000, show_default=True, help="Slow ones.")
@click.option("--pace", type=Seconds(), default="1s", show_default=True, help="From slow byte to slow byte.")
@click.option(
    "--rate",
    type=click.FloatRange(1, 100_000),
    default=2000,
    show_default=True,
    help="Normal requests per second.",
)
@click.option("--duration", type=Seconds(), default="1s", show_default=True, help="Of each turn of the load.")
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=12, show_default=True, help="Turns of each kind."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of order and arrivals."
)
@click.option("--policy", default="least-in-flight", show_default=True, help="Of Steelyard.")
@click.option(
    "--peers", "others", default="none", metavar="A,B,…|none", show_default=True, help="The others."
)
@click.option("--stalled", "is_stalled", is_flag=True, help="Only what a stalled reader of 1 GiB costs.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all runs there.")
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def slow_clients(
    policy: str, others: str, is_stalled: bool, file: Path | None, check: bool, **options: Any
) -> int:
    """Measure normal traffic alone, then beside clients that send a head or a body, or read, byte by byte."""
    proxies = (*map(peers.ours, known_policies([policy])), *peers.chosen(names_in(others)))
    cores = cores_for("one")
    require_writable("--json", file)
    plan = Plan(
        peers=tuple(proxy for proxy in proxies if not proxy.absence),
        clients=options["clients"],
        pace=options["pace"],
        rate=options["rate"],
        seconds=options["duration"],
        rounds=options["rounds"],
        seed=options["seed"],
        proxy_core=cores[0],
        load_core=generator_core(),
    )
    console = console_here()
    for proxy in proxies:
        if proxy.absence:
            console.print(Text(f"absent: {proxy.name} ({proxy.absence})"))
    session = Session(plan, console)
    was_stopped = session.run_session(is_stalled)
    found = session.present()
    if file is not None:
        session.write(file)
    return exit_code(console, was_stopped, check, found)


class Session:
    """One session of the benchmark: runs the plan, collects the runs and prints the table and bounds."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.runs: list[Run] = []
        self.stalls: list[Stalled] = []
        self._plan = plan
        self._console = console
        self._total = plan.rounds * len(plan.peers) * len(plan.slow_kinds) * 3

    def run_session(self, is_stalled: bool) -> bool:
        """Measure; returns whether it was interrupted. Raises `ExperimentError`."""
        plan = self._plan
        if is_stalled:
            return run_in_folder(self._stalls, self._console, "starting")
        self._console.print(Text(introduction(plan)))
        return run_in_folder(
            lambda folder: run_plan(plan, folder, self._run_ended), self._console, "starting"
        )

    async def _stalls(self, folder: Path) -> None:
        for number, peer in enumerate(self._plan.peers):
            place = folder / str(number)
            place.mkdir()
            self.stalls.append(await stalled(peer, place, self._plan.proxy_core))

    def _run_ended(self, run: Run) -> None:
        self.runs.append(run)
        found = (
            f"INVALID: {run.fault}"
            if run.fault
            else f"{run.ok}/{run.requests} ok, p99 {run.p99 * 1e3:.2f} ms"
        )
        line = f"[{len(self.runs)}/{self._total}] {run.slow_kind} {run.round + 1}, {run.peer}, {run.kind}: {found}"
        self._console.print(Text(line, style="red" if run.fault else "dim"))

    def present(self) -> list[bool | None]:
        """Print table and bounds; returns for each bound of Steelyard whether it is met, None if not judged."""
        rows = rows_of(self.runs)
        if rows:
            self._console.print(table_of(rows))
        if doubt := doubts(self.runs):
            self._console.print(Text(doubt, style="yellow"))
        found = [*verdicts(rows, peers.OURS), *(one.verdict for one in self.stalls)]
        print_verdicts(self._console, found)
        return [is_met for is_met, words in found if peers.OURS in words]

    def write(self, file: Path) -> None:
        """Write plan, rows and runs as JSON. Raises `BadInputError` if the file cannot be written."""
        plan = asdict(self._plan) | {"peers": [peer.name for peer in self._plan.peers]}
        content = {
            "plan": plan,
            "rows": [asdict(row) for row in rows_of(self.runs)],
            "runs": [asdict(run) for run in self.runs],
            "stalled": [asdict(one) for one in self.stalls],
        }
        write_json("--json", file, content)


def introduction(plan: Plan) -> str:
    """Text printed before the first run: load, core assignment, rounds, peers and seed."""
    slow_kind = f"{plan.clients} slow clients ({', '.join(plan.slow_kinds)}) at a byte per {plan.pace:g} s"
    places = f"the load on core {plan.load_core}, all else on core {plan.proxy_core}"
    return (
        f"{plan.rate:g} normal requests per second for {plan.seconds:g} s, quiet and beside {slow_kind}.\n"
        f"{plan.rounds} rounds, {len(plan.peers)} proxies, seed {plan.seed}; {places}.\n"
        f"Ours: {describe_build()}.\n"
    )
