"""`experiments reproduce NAME|all`: repeat published measurements.

Each source is a command of its own; `all` runs those added here in order.
"""

from __future__ import annotations

from pathlib import Path

import click

from experiments.reproduce.headers import headers
from experiments.reproduce.keepalive import keepalive
from experiments.reproduce.regions import regions
from experiments.reproduce.reuse import reuse
from experiments.reproduce.third_party import third_party
from experiments.terminal import STOPPED, require_writable

EPILOG = """\b
Examples:
  experiments reproduce keepalive
  experiments reproduce headers --quick
  experiments reproduce regions --check
  experiments reproduce reuse --plots results
  experiments reproduce all --quick --out results
"""


@click.group(epilog=EPILOG)
def reproduce() -> None:
    """Repeat published measurements, with both results side by side.

    \b
    The published documents:
    regions      performance evaluation report: a forwarding unit before regional workers (student's course work)
    reuse        connection reuse and libcurl: an API service that calls external APIs (publisher unknown)
    third-party  Enhancing P99 Latency … in Third-Party APIs (C. Velazquez, Uber, at P99 CONF 2024)
    keepalive    Improving API Performance with HTTP Keepalive (State Farm Engineering)
    headers      A good day to trie-hard: saving compute 1% at a time (The Cloudflare Blog, 2024)
    """


reproduce.add_command(keepalive)
reproduce.add_command(headers)
reproduce.add_command(reuse)
reproduce.add_command(regions)
reproduce.add_command(third_party)


@reproduce.command(name="all", epilog="Example: experiments reproduce all --quick --out results")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of all.")
@click.option("--quick", is_flag=True, help="Each as short as for tests.")
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where figures and NAME.json go.  [default: here]",
)
@click.pass_context
def all_(context: click.Context, seed: int, quick: bool, check: bool, out: Path) -> int:
    """Run every reproduction in order; the exit code is the worst of theirs."""
    require_writable("--out", out / "any")
    worst = 0
    for name, command in reproduce.commands.items():
        if command is context.command:
            continue
        files = {"plots": out, "file": out / f"{name}.json"}
        code: int = context.invoke(command, seed=seed, quick=quick, check=check, **files)
        if code == STOPPED:
            return STOPPED
        worst = max(worst, code)
    return worst
