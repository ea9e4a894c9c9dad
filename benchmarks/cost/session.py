"""Session of the cost benchmark: introduction of each case, progress, tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from benchmarks.cost.bounds import verdicts
from benchmarks.cost.plan import CostPlan, CostRun
from benchmarks.cost.runs import run_plan
from benchmarks.cost.table import doubts, rows_of, table_of
from benchmarks.harness.cases import Kind
from benchmarks.harness.peers import WORKER_PORTS, described, worker_name
from benchmarks.harness.serving import folder_in
from benchmarks.harness.verdicts import in_blocks
from experiments.platform.build import interpreter_in_words
from experiments.platform.session import Session


def run_session(session: Session, plans: Sequence[CostPlan], absent: dict[str, str]) -> int:
    """Measure one plan for each case and present; returns the exit code. Raises `ExperimentError`."""
    runs: list[CostRun] = []
    session.introduce(f"Python: {interpreter_in_words()}.")

    async def measure(folder: Path) -> None:
        for plan in plans:
            session.say(introduction(plan))
            await run_plan(plan, folder_in(folder, plan.case.name), session, runs)

    session.measure(measure, sum(plan.blocks * len(plan.peers) for plan in plans))
    tables = [part for plan in plans for part in case_tables(plan, runs, session.console.width)]
    tables += [Text(f"absent: {name} ({reason})") for name, reason in absent.items()]
    cases = [case_content(plan, runs) for plan in plans]
    return session.conclude(verdicts(runs), tables, doubts(runs), absent=absent, cases=cases, runs=runs)


def introduction(plan: CostPlan) -> str:
    """Text printed before a case: what is measured, blocks, connections, load and core assignment."""
    sizes = plan.case.sizes
    endpoints = f"{sizes[0][0]} to {sizes[-1][0]}" if sizes else f"{WORKER_PORTS}"
    busy = ", ".join(dict.fromkeys(str(peer.connections or plan.connections) for peer in plan.peers))
    return (
        f"\n{plan.case.name}: {what_is_measured(plan)}\n"
        f"{in_blocks(plan.blocks)} × {len(plan.peers)} proxies × {plan.seconds:g} s, "
        f"{busy} connections, {endpoints} endpoints, seed {plan.seed}.\n"
        f"Load: {load_in_words(plan)}; worker: {worker_name(plan.case)}; {place_in_words(plan)}.\n"
    )


def place_in_words(plan: CostPlan) -> str:
    if plan.proxy_core == plan.rest_core:
        return f"proxy, worker and load share core {plan.proxy_core}: no wake-up crosses cores"
    if plan.is_load_alone:
        return f"proxy and worker share core {plan.proxy_core}, load alone on core {plan.rest_core}"
    return f"proxy alone on core {plan.proxy_core}, worker and load on core {plan.rest_core}"


def load_in_words(plan: CostPlan) -> str:
    if plan.case.streams:
        return "h2load"
    load = "wrk" if plan.wrk else "the built-in generator, as wrk is not on the PATH"
    return {
        Kind.COST: load,
        Kind.TAIL: f"{load} for the capacity, then a built-in open loop",
    }.get(plan.case.kind, "connections of the benchmark itself")


def what_is_measured(plan: CostPlan) -> str:
    words = plan.case.words
    return {
        Kind.COST: f"CPU per forwarded {words}: user and system time of the proxy's process tree over requests.",
        Kind.TAIL: f"99th percentile of latency from the due time, {words} of the slowest, open loop.",
        Kind.MEMORY: f"memory per {words} that has made one request: growth of the proxy's PSS.",
        Kind.START: f"CPU per {words}, to the answer of the first request.",
        Kind.REST: f"memory of a {words}: PSS.",
    }[plan.case.kind]


def case_tables(plan: CostPlan, runs: Sequence[CostRun], width: int) -> list[RenderableType]:
    """Title, table and invalid peers of one case; empty if it was not measured."""
    rows = rows_of([run for run in runs if run.case == plan.case.name])
    if not rows:
        return []
    title = Text(f"{plan.case.name}: {plan.case.words}", style="bold")
    invalid = [Text(f"INVALID: {row.peer} ({row.fault})", style="bold red") for row in rows if row.fault]
    return [title, table_of(rows, plan.case.kind, width), *invalid]


def case_content(plan: CostPlan, runs: Sequence[CostRun]) -> dict[str, Any]:
    """Results of one case for JSON: its plan and a row for each peer."""
    case = asdict(plan.case) | {"kind": plan.case.kind.value}
    rows = rows_of([run for run in runs if run.case == plan.case.name])
    return {"plan": described(plan) | {"case": case, "worker": worker_name(plan.case)}, "proxies": rows}
