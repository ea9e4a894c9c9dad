"""`experiments reproduce NAME|all`: repeat published measurements, each source by a command of its own."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import click

from balancer.command_group import LazyGroup
from experiments.errors import STOPPED
from experiments.platform.terminal import make_directory
from experiments.reproduce.ab_lies import AbLies
from experiments.reproduce.els import Els
from experiments.reproduce.headers import Headers
from experiments.reproduce.keepalive import Keepalive
from experiments.reproduce.prequal_ramp import PrequalRamp
from experiments.reproduce.regions import Regions
from experiments.reproduce.reproduction import Reproduction, run_reproduction
from experiments.reproduce.reuse import Reuse
from experiments.reproduce.robinhood import Robinhood
from experiments.reproduce.third_party import ThirdParty

REPRODUCTIONS: tuple[type[Reproduction], ...] = (
    Keepalive,
    Headers,
    Reuse,
    Regions,
    ThirdParty,
    Els,
    AbLies,
    Robinhood,
    PrequalRamp,
)
"""In the order of `all`."""

DOCUMENTS = "\n".join(
    fill(kind.document.title, 78, initial_indent=f"{kind.name:12} ", subsequent_indent=13 * " ")
    + "\n"
    + fill(kind.document.publisher, 78, initial_indent=13 * " ", subsequent_indent=13 * " ")
    for kind in REPRODUCTIONS
)
EPILOG = f"""\b
The published documents:
{DOCUMENTS}

\b
Examples:
  experiments reproduce keepalive
  experiments reproduce headers --quick
  experiments reproduce regions --check
  experiments reproduce reuse --plots results
  experiments reproduce all --quick --out results
"""

SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of order, load and faults."
)
QUICK = click.option("--quick", is_flag=True, help="An impression in under a minute, and for tests.")
CHECK = click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=LazyGroup, epilog=EPILOG)
def reproduce() -> None:
    """Repeat published measurements, with both results side by side."""


def command_of(kind: type[Reproduction]) -> click.Command:
    examples = f"""Document: {kind.document.title} ({kind.document.publisher}).

    \b
    Examples:
      experiments reproduce {kind.name:20} {kind.duration}, writes {kind.name}.png
      experiments reproduce {f"{kind.name} --quick":20} under a minute
      experiments reproduce {kind.name} --check --plots results --json results/{kind.name}.json
    """

    @click.command(name=kind.name, help=kind.summary, epilog=examples)
    @SEED
    @QUICK
    @click.option(
        "--plots", type=FOLDER, default=Path(), help="The folder for the figure, as PNG.  [default: here]"
    )
    @click.option("--json", "file", type=FILE, help="Write the results there.")
    @CHECK
    def command(**given: Any) -> int:
        return run_reproduction(kind, **given)

    return command


for one in REPRODUCTIONS:
    reproduce.add_command(command_of(one))


@reproduce.command(name="all", epilog="Example: experiments reproduce all --quick --out results")
@SEED
@QUICK
@CHECK
@click.option("--out", type=FOLDER, default=Path(), help="Where figures and NAME.json go.  [default: here]")
def all_(seed: int, quick: bool, check: bool, out: Path) -> int:
    """Run every reproduction in order; the exit code is the worst of theirs."""
    make_directory("--out", out)
    worst = 0
    for kind in REPRODUCTIONS:
        code = run_reproduction(kind, seed, quick, out, out / f"{kind.name}.json", check)
        if code == STOPPED:
            return STOPPED
        worst = max(worst, code)
    return worst
