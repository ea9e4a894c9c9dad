"""`python -m benchmarks cost`: CPU time per forwarded request, beside other proxies, interleaved on one machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.cost.plan import CostPlan
from benchmarks.cost.session import run_session
from benchmarks.harness import peers
from benchmarks.harness.cases import ALL, CASES, Case
from benchmarks.harness.options import CHECK, JSON, SECONDS, SEED, cores_for, known_policies, names_in
from benchmarks.harness.peers import Peer
from experiments.platform.session import Session

EPILOG = """\b
Examples:
  python -m benchmarks cost                             a small GET through all proxies on the PATH, two minutes
  python -m benchmarks cost --blocks 30 --json bench.json
  python -m benchmarks cost --policies least-in-flight,random --peers nginx,aiohttp
  python -m benchmarks cost --case get1m --pin split
  python -m benchmarks cost --case all --check          every case; exit code 1 when a bound is missed
  python -m benchmarks cost --case all --peers none --against ../before/.venv-compiled/bin/python
"""


@click.command(epilog=EPILOG)
@click.option(
    "--case",
    type=click.Choice([*CASES, ALL]),
    metavar="CASE",
    default="get",
    show_default=True,
    help="One of the above, or 'all', one after the other.",
)
@click.option(
    "--blocks",
    type=click.IntRange(1, 1000),
    help="Runs of each proxy.  [default: 15; 25 in 'half', 5 in 'idle' and 'rest', 10 in 'start']",
)
@click.option("--duration", type=SECONDS, help="Time of each run.  [default: 1s; 2s in 'endpoints']")
@click.option(
    "--connections",
    type=click.IntRange(1, 16384),
    help="Kept busy, or, in 'idle', idle.  [default: 64; 3000 in 'idle', 900 to 250 in 'endpoints']",
)
@SEED
@click.option(
    "--pin",
    type=click.Choice(["one", "split"]),
    help="Everything on one core, or the proxy alone on a first and the rest on a second.  "
    "[default: one; split in 'half']",
)
@click.option(
    "--policies",
    metavar="A,B,…",
    help="Steelyard with each of them.  [default: least-in-flight; round-robin as well in 'endpoints']",
)
@click.option(
    "--peers",
    "others",
    default=",".join(peers.PEERS),
    metavar="A,B,…|none",
    show_default=True,
    help="Other proxies, as far as the case applies to them.",
)
@click.option(
    "--against",
    metavar="PYTHON",
    help="A Python with another build of Steelyard, measured in the same blocks and compared with this one.",
)
@JSON
@CHECK
def cost(
    case: str,
    others: str,
    policies: str | None,
    against: str | None,
    file: Path | None,
    check: bool,
    **options: Any,
) -> int:
    """Measure the CPU cost of a forwarded request: Steelyard, other proxies, a simple aiohttp proxy, a TCP relay.

    \b
    get, tls, get1m, post16k   processor time per request
    stream                     the same of an answer of fifty chunks
    http2, http2x10            the same in HTTP/2, 1 and 10 at a time
    half                       p99 of latency at half of the capacity, open loop
    idle                       memory per idle client connection
    start, rest                CPU of a start, memory of the process then
    endpoints                  the same with 2, 10, 100 and 1000 endpoints
    inference                  POST of 2 KiB, routed by its prompt
    traced, continued          what a new trace and a continued one cost
    """
    session = Session(file, check)
    chosen = peers.chosen(names_in(others))
    named = known_policies(names_in(policies)) if policies is not None else None
    cases = [CASES[case]] if case != ALL else list(CASES.values())
    pythons = ["", peers.require_build(against)] if against is not None else [""]
    made = [plan_of(one, named or list(one.policies), pythons, chosen, options) for one in cases]
    absent = {name: reason for _, missing in made for name, reason in missing.items()}
    return run_session(session, [plan for plan, _ in made if plan.peers], absent)


def plan_of(
    case: Case, policies: list[str], pythons: list[str], others: Sequence[Peer], options: dict[str, Any]
) -> tuple[CostPlan, dict[str, str]]:
    """Plan of one case, and the absent peers with their reasons. Raises `BadInputError`."""
    proxy_core, rest_core = cores_for(options["pin"] or case.pin)
    proxies = peers_of(case, policies, others, pythons)
    if options["connections"]:
        proxies = [replace(proxy, connections=0) for proxy in proxies]
    absent = {proxy.name: reason for proxy in proxies if (reason := proxy.absence_from(case))}
    plan = CostPlan(
        peers=tuple(proxy for proxy in proxies if not proxy.absence_from(case)),
        case=case,
        connections=options["connections"] or case.connections,
        seconds=options["duration"] or case.seconds,
        blocks=options["blocks"] or case.blocks,
        seed=options["seed"],
        proxy_core=proxy_core,
        rest_core=rest_core,
        wrk=shutil.which("wrk"),
    )
    return plan, absent


def peers_of(
    case: Case, policies: list[str], others: Sequence[Peer], pythons: Sequence[str] = ("",)
) -> list[Peer]:
    """Steelyard with each policy, size and build, and the other peers that the case applies to."""
    own = [
        peers.ours(policy, *size, other_python=python, is_traced=is_traced, keys=dict(case.keys))
        for policy in policies
        for size in case.sizes or ((0, 0),)
        for python in pythons
        for is_traced in ((False, True) if case.is_traced else (False,))
    ]
    fit = None if case.others is None else [peers.PEERS[name] for name in case.others]
    return own + [peer for peer in others if fit is None or peer in fit]
