"""The command `experiments simulate`: a campaign in virtual time."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from experiments.campaign.options import campaign_options, chosen_scenario, default_directory
from experiments.campaign.shelf import DEFAULT

EPILOG = """\b
Examples:
  experiments simulate                          the default scenario, in seconds instead of an hour
  experiments simulate steady --rate 240 --blocks 20
  experiments simulate my-scenario.toml --policies random,oracle-least-work
"""


@click.command(epilog=EPILOG)
@click.argument("scenario", default=DEFAULT)
@campaign_options
def simulate(scenario: str, policies: str | None, out: Path | None, **options: Any) -> int:
    """Simulate SCENARIO (default: regions), a name from `experiments list` or a TOML file, in virtual time.

    The policies, the router and its mechanisms are the balancer's own; workers, network and clients are simulated.
    Beside the registry's policies there are oracles, which use information that no balancer has: oracle-least-work,
    oracle-least-work-of-two, oracle-central-queue and oracle-static-split.
    """
    from experiments.simulator.session import run_session

    chosen = chosen_scenario(scenario, policies, options)
    command = shlex.join(["experiments", *sys.argv[1:]])
    return run_session(chosen, command, out or default_directory(chosen))
