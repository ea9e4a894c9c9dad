"""The command `experiments live`: compare policies on a running balancer under its own traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from experiments.commands.options import (
    DURATION,
    MAX_ERRORS,
    MAX_P99,
    OUT,
    PAGE,
    POLICY,
    TOKEN,
    command_line,
    live_page,
    new_directory,
    policies_chosen,
)
from experiments.errors import BadInputError
from experiments.platform.terminal import clock, console_here
from experiments.results.directory import require_new
from experiments.scenario.files import validated
from experiments.scenario.service import LiveScenario
from experiments.stats.comparison import ENOUGH_BLOCKS

EPILOG = """\b
Examples:
  experiments live http://127.0.0.1:8080 --policies region-aware,peak-ewma
  experiments live https://balancer.example.org --token … --policies a,b --block 30s --blocks 40
  experiments live http://127.0.0.1:8080 --policies random,random        an A/A pair: the noise of this traffic
  experiments live http://127.0.0.1:8080 --policies region-aware \\
      --policy '{"name": "region-aware", "margin": 0.05}' --max-p99 400ms --max-errors 1%

Exit codes: 0 done, 1 a guard rail broke and the old policy is back, 2 bad input, 3 the balancer failed, 130 stopped.
"""

LEAST_WASHOUT = 2.0
"""Seconds in which requests that the predecessor placed are usually answered."""


@click.command("live", epilog=EPILOG, context_settings={"show_default": True})
@click.argument("url", metavar="URL")
@click.option(
    "--policies",
    default="",
    show_default=False,
    metavar="A,B,…",
    help="Policies by name. One that is named twice is an A/A pair.",
)
@POLICY
@click.option("--block", "period", type=DURATION, default="30s", help="Time of each policy in a block.")
@click.option(
    "--blocks",
    type=click.IntRange(1, 10_000),
    default=40,
    help=f"In each, every policy has its turn once, in random order; {ENOUGH_BLOCKS} give a verdict.",
)
@click.option(
    "--washout",
    type=DURATION,
    help="Time after each switch that does not count.  [default: a sixth of --block, 2s at least, half at most]",
)
@MAX_P99
@MAX_ERRORS
@click.option(
    "--deadline",
    type=DURATION,
    default="30s",
    help="As slow counts a failed request in the verdict; goodput is the share answered within it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed of the order.")
@TOKEN
@click.option("--cluster", metavar="NAME", help="Named cluster.  [default: that of the top level]")
@PAGE
@OUT
def live(
    url: str,
    policies: str,
    tables: tuple[str, ...],
    period: float,
    blocks: int,
    washout: float | None,
    max_p99: float | None,
    max_errors: float | None,
    deadline: float,
    seed: int,
    token: str | None,
    cluster: str | None,
    page: str | None,
    out: Path | None,
) -> int:
    """Alternate the policies of the balancer at URL under its own traffic, and report which one serves it best.

    Restores the initial policy at the end, when a guard rail breaks, on Ctrl-C and on any failure.
    """
    from experiments.commands.session import run_campaign
    from experiments.switchback.balancer import LiveBalancer
    from experiments.switchback.runner import LiveRunner
    from experiments.switchback.turns import PolicyTurns

    chosen, control = policies_chosen(policies, tables)
    rest = washout or usual_washout(period)
    if rest >= period:
        raise BadInputError(f"--washout: must be shorter than --block ({period:g} s), got {rest:g} s")
    if not url.startswith(("http://", "https://", "unix:/")):
        raise BadInputError(f"URL: must begin with http://, https:// or unix:/, got {url!r}")
    console, directory = console_here(), out or new_directory("live")
    require_new(directory)
    turns = PolicyTurns(
        LiveBalancer(url, token, cluster=cluster),
        max_p99,
        max_errors,
        lambda line: console.print(line, highlight=False),
        min(1.0, period / 10),
    )
    times = {"blocks": blocks, "period": period, "washout": rest, "timeout": deadline}
    with live_page(page) as shown:
        if shown is not None:
            shown.follow(url, token, cluster)
        initial = turns.begin([*chosen.values()])
        scenario = live_scenario(url, chosen, control, initial, seed=seed, **times)
        whole = clock(period * (1 + blocks * len(chosen)))
        console.print(f"{' and '.join(chosen)}, each {period:g} s in a block: about {whole}", highlight=False)
        return run_campaign(
            scenario, directory, LiveRunner(turns), 0.0, turns.restoring(), command_line(("--token",)),
            page=shown,
        )  # fmt: skip


def usual_washout(period: float) -> float:
    """Seconds of wash-out for a period: a sixth, two seconds at least, half of a short one at most."""
    return min(max(LEAST_WASHOUT, period / 6), period / 2)


def live_scenario(
    url: str,
    chosen: dict[str, dict[str, Any]],
    control: tuple[str, str] | None,
    initial: dict[str, Any],
    **keys: Any,
) -> LiveScenario:
    """Scenario of the options; the baseline is `initial`, or the first policy. Raises `BadInputError`."""
    baseline = next((label for label, policy in chosen.items() if policy == initial), next(iter(chosen)))
    repeats = {control[1]: control[0]} if control else {}
    content = {
        "name": "live",
        "question": f"Which policy answers the traffic of {url} soonest: {' or '.join(chosen)}?",
        "baseline": baseline,
        "url": url,
        "slo": keys["timeout"],
        "entries": [
            {"label": label, "policy": policy, "repeat_of": repeats.get(label)}
            for label, policy in chosen.items()
        ],
        **keys,
    }
    return validated(LiveScenario, content, r"^$")
