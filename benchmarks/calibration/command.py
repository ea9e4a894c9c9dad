"""`python -m benchmarks calibration`: rate of false verdicts, from campaigns with known truth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import track
from rich.table import Table

from benchmarks.calibration.methods import LABELS, METHODS, lasting, null_campaign
from benchmarks.calibration.queue import queues, run_queues
from benchmarks.calibration.rates import LEAST_FOUND, MOST_FALSE, MethodRates, many, outcome
from benchmarks.harness.options import CHECK, JSON, SEED, known_names
from experiments.commands.options import Parsed
from experiments.errors import BadInputError
from experiments.platform.session import BoundVerdict, Session
from experiments.platform.terminal import plain_table
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate
from experiments.stats.comparison import ENOUGH_BLOCKS

EPILOG = """\b
Examples:
  python -m benchmarks calibration                                     200 campaigns of equals, half a minute
  python -m benchmarks calibration --planted 1.10 --blocks 8,16,32 --requests 20000,60000
  python -m benchmarks calibration --methods student,percentile,bca,studentised,sign-flip
  python -m benchmarks calibration --scenario steady --policy least-in-flight --planted 1.10 --requests 5000
  python -m benchmarks calibration --planted 1.10 --check              exit code 1 when a bound is missed
"""

COLUMNS = (
    "method", "requests", "blocks", "pair", "false verdicts", "elsewhere", "found", "other false verdicts",
)  # fmt: skip


def numbers_of(least: int) -> Parsed:
    """Option type of whole numbers separated by commas."""

    def parse(text: str) -> list[int]:
        if min(numbers := [int(part) for part in text.split(",")]) < least:
            raise ValueError("too little")
        return numbers

    return Parsed("numbers", parse, f"whole numbers of at least {least}, separated by commas")


BLOCKS, REQUESTS = numbers_of(ENOUGH_BLOCKS), numbers_of(100)


@click.command(epilog=EPILOG)
@click.option(
    "--campaigns", type=click.IntRange(min=2), default=200, show_default=True, help="Campaigns of each size."
)
@click.option("--scenario", help="Scenario to simulate.  [default: fast vectorised queues]")
@click.option(
    "--policy", help="With --scenario: an entry's label, or a policy by name.  [default: its first]"
)
@click.option(
    "--planted", type=click.FloatRange(0.1, 10), help="Stretch one entry's latencies by this factor."
)
@click.option(
    "--blocks",
    type=numbers_of(ENOUGH_BLOCKS),
    metavar="N,M,…",
    default="8",
    show_default=True,
    help="Per campaign.",
)
@click.option(
    "--requests", type=numbers_of(100), metavar="N,M,…", default="20000", show_default=True, help="Per run."
)
@click.option(
    "--rivals",
    type=click.IntRange(1, len(LABELS) - 1),
    default=4,
    show_default=True,
    help="Entries compared with the baseline.",
)
@click.option("--twin/--no-twin", default=True, show_default=True, help="Whether campaigns have an A/A pair.")
@click.option("--methods", default="student", show_default=True, help=f"Of {', '.join(METHODS)}.")
@SEED
@click.option("--jobs", type=click.IntRange(1, 64), help="Campaigns at the same time.  [default: processors]")
@JSON
@CHECK
def calibration(
    campaigns: int,
    scenario: str | None,
    policy: str | None,
    planted: float | None,
    blocks: list[int],
    requests: list[int],
    rivals: int,
    twin: bool,
    methods: str,
    seed: int,
    jobs: int | None,
    file: Path | None,
    check: bool,
) -> int:
    """Count how often a verdict is false where all are equal, and how often a planted difference is found."""
    chosen = known_names("--methods", methods, METHODS)
    session, found = Session(file, check), list[MethodRates]()
    simulate_run = run_queues if scenario is None else simulate
    alike = [
        null_campaign(laboratory(scenario, policy, size), max(blocks), rivals, twin) for size in requests
    ]
    with session.interruptible():
        for one in alike:
            work = many(
                simulate_run, one, planted, range(seed, seed + campaigns), jobs or os.cpu_count() or 1
            )
            words = f"campaigns of {one.load.planned} requests"
            done = list(track(work, words, campaigns, console=session.console, transient=True))
            found += [outcome(done, count, method, planted) for count in blocks for method in chosen]
    return session.conclude(
        [verdict for one in found for verdict in verdicts_on(one)],
        [table_of(found)] if found else (),
        outcomes=[plain(one) for one in found],
    )


def laboratory(name: str | None, policy: str | None, requests: int) -> Scenario:
    """The queues, or a scenario with the chosen entry first. Raises `BadInputError`."""
    if name is None:
        if policy is not None:
            raise BadInputError("--policy: the queues know only random; name a --scenario")
        return queues(requests)
    names = () if policy is None else (policy,)
    return lasting(overridden(load_scenario(name), Overrides(policies=names)), requests)


def table_of(outcomes: Sequence[MethodRates]) -> Table:
    """Table of rates with 95 % intervals, a row for each method and size."""
    rows = []
    for one in outcomes:
        rates = (one.false, one.elsewhere, one.right, one.wrong)
        size = (str(one.requests), str(one.blocks), f"± {100 * one.spread:.1f} %")
        rows.append((one.method, *size, *("–" if rate is None else str(rate) for rate in rates)))
    made = plain_table(COLUMNS, rows)
    made.caption = (
        "rates of campaigns with Wilson's 95 % interval; pair: standard deviation of log(p99 / p99)"
    )
    return made


def verdicts_on(one: MethodRates) -> list[BoundVerdict]:
    """Verdicts on the rate of false verdicts, and, if a difference was planted, on the rate of those found."""
    size = f"{one.method}, {one.blocks} blocks of {one.requests} requests"
    bound = f"false verdicts ≤ {100 * MOST_FALSE:g} %"
    verdicts = [BoundVerdict(size, bound, one.holds_level, str(one.false))]
    if one.right is not None:
        verdicts.append(BoundVerdict(size, f"found ≥ {100 * LEAST_FOUND:g} %", one.has_power, str(one.right)))
    return verdicts


def plain(one: MethodRates) -> dict[str, Any]:
    """Outcome for JSON: each rate with its interval."""
    numbers = {"method": one.method, "requests": one.requests, "blocks": one.blocks, "spread": one.spread}
    rates = {"false": one.false, "elsewhere": one.elsewhere, "found": one.right, "untrue": one.wrong}
    return numbers | {
        name: rate
        and {"hits": rate.hits, "total": rate.total, "rate": rate.value, "interval": list(rate.interval)}
        for name, rate in rates.items()
    }
