"""`python -m benchmarks slow-clients`: latency of normal traffic beside a thousand slow senders or readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.harness import peers
from benchmarks.harness.options import (
    CHECK,
    JSON,
    PEERS,
    POLICY,
    SECONDS,
    SEED,
    known_names,
    known_policies,
    names_in,
    proxy_and_load_cores,
)
from benchmarks.harness.serving import folder_in
from benchmarks.slow_clients.flood_client import FLOODS
from benchmarks.slow_clients.runs import FLOODING, SLOW_KINDS, SlowPlan, SlowRun, run_plan
from benchmarks.slow_clients.stalled import Stalled, stalled
from benchmarks.slow_clients.table import doubts, rows_of, table_of, verdicts
from experiments.platform.session import Session

SLOW_AND_FLOODS = (*SLOW_KINDS, *FLOODS)

EPILOG = """\b
Examples:
  python -m benchmarks slow-clients                          Steelyard alone, about five minutes
  python -m benchmarks slow-clients --peers nginx,haproxy --rounds 3
  python -m benchmarks slow-clients --clients 200 --pace 100ms --duration 2s
  python -m benchmarks slow-clients --kinds resets,continuation --http2
  python -m benchmarks slow-clients --stalled                memory cost of one stalled reader of 1 GiB
  python -m benchmarks slow-clients --check                  exit code 1 when a bound is missed
"""


@click.command(name="slow-clients", epilog=EPILOG)
@click.option(
    "--clients", type=click.IntRange(1, 8000), default=1000, show_default=True, help="Slow clients."
)
@click.option("--pace", type=SECONDS, default="1s", show_default=True, help="Between two slow bytes.")
@click.option(
    "--rate",
    type=click.FloatRange(1, 100_000),
    default=2000,
    show_default=True,
    help="Normal requests per second.",
)
@click.option(
    "--duration", "seconds", type=SECONDS, default="1s", show_default=True, help="Time of each run."
)
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=12, show_default=True, help="Runs of each kind."
)
@click.option(
    "--kinds",
    default=",".join(SLOW_AND_FLOODS),
    show_default=True,
    metavar="A,B,…",
    help="Slow clients and floods.",
)
@click.option("--http2", "is_http2", is_flag=True, help="Normal requests over HTTP/2.")
@SEED
@POLICY
@PEERS
@click.option(
    "--stalled", "is_stalled", is_flag=True, help="Only the memory cost of a stalled reader of 1 GiB."
)
@JSON
@CHECK
def slow_clients(
    policy: str, others: str, kinds: str, is_stalled: bool, file: Path | None, check: bool, **options: Any
) -> int:
    """Measure normal traffic alone, then beside clients that send a head or a body, or read, byte by byte."""
    session = Session(file, check)
    proxies = (
        *(peers.ours(one, template="slow-steelyard.toml") for one in known_policies([policy])),
        *peers.chosen(names_in(others)),
    )
    proxy_core, load_core = proxy_and_load_cores()
    plan = SlowPlan(
        peers=peers.available(proxies, session.say),
        proxy_core=proxy_core,
        load_core=load_core,
        kinds=tuple(known_names("--kinds", kinds, SLOW_AND_FLOODS)),
        **options,
    )
    return run_stalled(session, plan) if is_stalled else run_session(session, plan)


def run_session(session: Session, plan: SlowPlan) -> int:
    """Measure all kinds of slow clients and present; returns the exit code. Raises `ExperimentError`."""
    session.introduce(introduction(plan))
    runs: list[SlowRun] = []

    def run_ended(run: SlowRun) -> None:
        runs.append(run)
        figures = f"{run.ok}/{run.requests} ok, p99 {run.p99 * 1e3:.2f} ms"
        session.run_ended(f"{run.slow_kind} {run.round + 1}, {run.peer}, {run.kind}", figures, run.fault)

    session.measure(
        lambda folder: run_plan(plan, folder, run_ended),
        plan.rounds * sum(len(plan.kinds_for(peer)) for peer in plan.peers) * 3,
    )
    rows = rows_of(runs)
    return session.conclude(
        verdicts(rows, peers.OURS),
        [table_of(rows)] if rows else (),
        doubts(runs),
        plan=peers.described(plan),
        rows=rows,
        runs=runs,
    )


def run_stalled(session: Session, plan: SlowPlan) -> int:
    """Measure a stalled reader on every proxy and present; returns the exit code. Raises `ExperimentError`."""
    found: list[Stalled] = []

    async def measure(folder: Path) -> None:
        for number, peer in enumerate(plan.peers):
            found.append(await stalled(peer, folder_in(folder, str(number)), plan.proxy_core))
            session.run_ended(peer.name, found[-1].verdict.found)

    session.measure(measure, len(plan.peers))
    own = [one.verdict for one in found if one.peer.startswith(peers.OURS)]
    return session.conclude(own, plan=peers.described(plan), stalled=found)


def introduction(plan: SlowPlan) -> str:
    """Text printed before the first run: load, core assignment, rounds, peers and seed."""
    slow = f"{plan.clients} slow clients at a byte per {plan.pace:g} s, or {FLOODING} that flood"
    places = f"the load on core {plan.load_core}, all else on core {plan.proxy_core}"
    normal = f"{plan.rate:g} normal requests per second over HTTP/{2 if plan.is_http2 else 1.1}"
    return (
        f"{normal} for {plan.seconds:g} s, quiet and beside {slow} ({', '.join(plan.kinds)}).\n"
        f"{plan.rounds} rounds, {len(plan.peers)} proxies, seed {plan.seed}; {places}."
    )
