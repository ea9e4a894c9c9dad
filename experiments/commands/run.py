"""The command `experiments run`: a scenario on real processes, or in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from experiments.commands.options import (
    JUNIT,
    OTLP,
    OUT,
    PAGE,
    PARQUET,
    PATIENCE,
    POSITIVE,
    SIMULATED,
    live_page,
    named,
    new_directory,
    require_none,
)
from experiments.scenario.files import DEFAULT, load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Scenario
from experiments.scenario.supported import require_live, require_simulated

EPILOG = """\b
Examples:
  experiments run --quick                       the default scenario in about a minute
  experiments run --policies random,region-aware --blocks 8
  experiments run steady --rate 120 --duration 20
  experiments run my-scenario.toml --out results/first
  experiments run steady --patience 4m          on a machine that others use too
  experiments run regions --page 9180           with a live page at http://127.0.0.1:9180/-/
  experiments run steady --simulated --blocks 20
  experiments run random-7 --simulated          a scenario drawn at random from seed 7
  experiments run my-scenario.toml --simulated --policies random,oracle-least-work

With --simulated, the policies, the router and its mechanisms are the balancer's own; workers, network and clients are
simulated. The oracles are policies that use information that no balancer has: oracle-least-work,
oracle-least-work-of-two, oracle-central-queue, oracle-static-split, oracle-informed, which knows the present
but not the work of a request, and oracle-clairvoyant, which knows most.
"""


@click.command(epilog=EPILOG)
@click.argument("scenario", default=DEFAULT)
@SIMULATED
@click.option(
    "--policies", metavar="A,B,…", help="Only these entries, by label or policy name; or any policy."
)
@click.option("--requests", type=click.IntRange(min=1), help="Requests per run, closed loop.")
@click.option("--batch", type=click.IntRange(min=1), help="Requests kept outstanding, closed loop.")
@click.option("--rate", type=POSITIVE, help="Requests per second, open loop.")
@click.option("--duration", type=POSITIVE, help="Seconds per run, open loop.")
@click.option("--blocks", type=click.IntRange(min=1), help="How often every entry is run; 8 give a verdict.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of order, arrivals, demand and policies.")
@click.option("--time-scale", type=POSITIVE, help="Seconds that 1 s of the scenario takes.")
@OUT
@click.option("--quick", is_flag=True, help="One block and few requests: an impression, not a verdict.")
@PATIENCE
@PAGE
@PARQUET
@JUNIT
@OTLP
def run(
    scenario: str,
    simulated: bool,
    policies: str | None,
    out: Path | None,
    patience: float,
    page: str | None,
    parquet: bool,
    junit: Path | None,
    otlp: str | None,
    **options: Any,
) -> int:
    """Run SCENARIO (default: regions) and report: a name from `experiments show`, or a TOML file."""
    from experiments.commands.session import run_campaign, runner_of

    if simulated:
        measured_only = {"patience": patience, "page": page, "otlp": otlp}
        require_none(
            measured_only, "only for measured runs; a simulated one has no processes and takes no time"
        )
    loaded, given = load_scenario(scenario), Overrides(policies=named(policies), **options)
    chosen = overridden(loaded, given)
    (require_simulated if simulated else require_live)(chosen)
    directory = out or new_directory(chosen.name)
    with live_page(page) as shown:
        runner = runner_of(simulated, shown)
        return run_campaign(
            chosen,
            directory,
            runner,
            patience,
            parquet=parquet,
            page=shown,
            note=quick_note(loaded, chosen, given),
            junit=junit,
            otlp=otlp,
        )


def quick_note(loaded: Scenario, chosen: Scenario, given: Overrides) -> str:
    """Sentence about the A/A pair, if the scenario has one of the chosen entries and `--quick` leaves it out."""
    pair = loaded.control_pair if given.quick else None
    is_chosen = pair is not None and pair[0] in {entry.label for entry in chosen.entries}
    return (
        "--quick leaves out the A/A pair, so nothing shows how much two runs alike differ."
        if is_chosen
        else ""
    )
