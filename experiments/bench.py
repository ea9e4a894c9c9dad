"""`experiments bench`: what forwarding one request costs, beside others on the same machine in the same minutes.

Rule of this file: it decides nothing by itself. Options become a plan; the sitting does the rest. What cannot be
measured as asked is refused here, in one line, before anything is started.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from random import Random

import click

from experiments import bench_cpu, peers
from experiments.bench_load import CASES
from experiments.bench_runs import Plan
from experiments.bench_sitting import conduct
from experiments.errors import BadInputError
from policies import registry
from policies.errors import PoliciesError

EPILOG = """\b
Examples:
  experiments bench                             all that are on the PATH, about two minutes
  experiments bench --blocks 10 --json bench.json
  experiments bench --policies least-in-flight,random --peers nginx,aiohttp
  experiments bench --case get1m --pin split
  experiments bench --check                     exit code 1 when a bound is missed
"""


class Seconds(click.ParamType[float]):
    """3s, 300ms or plain seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|)", str(value))
        seconds = float(found[1]) * (0.001 if found[2] == "ms" else 1.0) if found else 0.0
        if not 0.1 <= seconds <= 600:
            self.fail(f"{value!r} must be a duration such as 3s or 300ms, from 100ms to 600s", param, context)
        return seconds


@click.command(epilog=EPILOG)
@click.option(
    "--blocks", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs of each unit."
)
@click.option("--duration", type=Seconds(), default="3s", show_default=True, help="Of each run.")
@click.option("--connections", type=click.IntRange(1, 4096), default=64, show_default=True, help="Kept busy.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the order of runs."
)
@click.option(
    "--pin",
    type=click.Choice(["one", "split"]),
    default="one",
    show_default=True,
    help="Everything on one core, or the proxy alone on a first and the rest on a second.",
)
@click.option(
    "--case", type=click.Choice(list(CASES)), default="get", show_default=True, help="What is asked."
)
@click.option(
    "--policies",
    default="least-in-flight",
    metavar="A,B,…",
    show_default=True,
    help="A unit of ours for each.",
)
@click.option(
    "--peers",
    "others",
    default=",".join(peers.PEERS),
    metavar="A,B,…|none",
    show_default=True,
    help="The others.",
)
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all runs there.")
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def bench(
    blocks: int,
    duration: float,
    connections: int,
    seed: int,
    pin: str,
    case: str,
    policies: str,
    others: str,
    file: Path | None,
    check: bool,
) -> int:
    """Measure the processor time per forwarded request: ours, other proxies, the obvious way, the floor."""
    units = [peers.ours(policy) for policy in known_policies(names_in(policies))]
    units += peers.chosen(names_in(others))
    proxy_core, rest_core = cores_for(pin)
    if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
        raise BadInputError(f"--json: {file.parent} is not a directory that can be written to")
    if check and not CASES[case].is_bounded:
        raise BadInputError("--check: the bounds speak of --case get only")
    plan = Plan(
        peers=tuple(unit for unit in units if not unit.absence),
        case=CASES[case],
        connections=connections,
        seconds=duration,
        blocks=blocks,
        seed=seed,
        proxy_core=proxy_core,
        rest_core=rest_core,
        wrk=shutil.which("wrk"),
    )
    absent = {unit.name: unit.absence for unit in units if unit.absence}
    return conduct(plan, absent, file, check)


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def known_policies(names: list[str]) -> list[str]:
    """Policies that work without options. Raises BadInputError."""
    if not names:
        raise BadInputError("--policies: name at least one, separated by commas")
    try:
        for name in names:
            registry.make(name, {}, Random(0))
    except PoliciesError as error:
        raise BadInputError(f"--policies: {error}") from None
    return list(dict.fromkeys(names))


def cores_for(pin: str) -> tuple[int, int]:
    """The proxy's core, and that of everything else. Raises BadInputError."""
    if not bench_cpu.is_known_here():
        raise BadInputError(
            "bench reads processor time as Linux accounts for it, and pins processes: Linux only"
        )
    found = bench_cpu.cores()
    if pin == "split" and len(found) < 2:
        raise BadInputError("--pin: split needs two cores, and there is one")
    return found[0], found[0] if pin == "one" else found[1]
