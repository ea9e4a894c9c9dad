"""`experiments simulate`: a campaign in virtual time, or the simulator's certificate."""

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
  experiments simulate --certificate            the simulator beside the closed forms of queueing theory
"""


@click.command(epilog=EPILOG)
@click.argument("scenario", default=DEFAULT)
@campaign_options
@click.option(
    "--certificate", is_flag=True, help="Hold the simulator against closed forms, and nothing else."
)
@click.option(
    "--samples",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="With --certificate: so many times the samples.",
)
def simulate(
    scenario: str, policies: str | None, out: Path | None, certificate: bool, samples: float, **options: Any
) -> int:
    """Simulate SCENARIO (default: regions), a name from `experiments list` or a TOML file, in virtual time.

    The policies, the router and its mechanisms are the balancer's own; workers, network and clients are worked out.
    Beside the registry's policies there are oracles, which know what no balancer can: oracle-least-work,
    oracle-least-work-of-two, oracle-central-queue and oracle-static-split.
    """
    from experiments.simulator.certificate import present_certificate
    from experiments.simulator.session import conduct

    if certificate:
        return present_certificate(samples)
    chosen = chosen_scenario(scenario, policies, options)
    command = shlex.join(["experiments", *sys.argv[1:]])
    return conduct(chosen, command, out or default_directory(chosen))
