"""The command `experiments capacity`: the highest rate that a policy sustains within an SLO, or the load curve.

Only parses options and prints a line for each trial.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.text import Text

from balancer.syntax.printable import with_digits
from experiments.capacity.criteria import LEAST_REQUESTS, Capacity, RateTrial, search, so_far, tried
from experiments.capacity.curve import is_curve
from experiments.capacity.offered import at_rate, pooled, rates_in
from experiments.commands.options import (
    DURATION,
    JSON,
    POSITIVE,
    SIMULATED,
    command_line,
    named,
    new_directory,
    require_none,
)
from experiments.commands.report import report_curve
from experiments.errors import STOPPED, BadInputError
from experiments.platform.terminal import (
    clock,
    console_here,
    in_ms,
    print_stopped,
    signals_interrupt,
    write_json,
)
from experiments.results.directory import PlannedRun, load_campaign, require_new
from experiments.running.execute import execute, prepare
from experiments.running.progress import CampaignProgress
from experiments.running.runner import Interrupted, Observer, Runner
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Scenario
from experiments.scenario.supported import require_live, require_simulated
from experiments.stats.comparison import typical

EPILOG = """\b
Examples:
  experiments capacity steady --policy region-aware --slo 800ms --simulated
  experiments capacity steady --policy round-robin --slo 1s --duration 20
  experiments capacity steady --policy random --slo 900ms --simulated --searches 8 --json capacity.json
  experiments capacity steady --curve --simulated
  experiments capacity steady --curve --policies round-robin,region-aware --rates 60,120,180,240 --blocks 4
  experiments capacity steady --curve --simulated --rates 50%,70%,90%,95%,105% --duration 120 --out results/curve

A rate passes when 99 % of it was sent, at most 0.1 % failed, p99 keeps the SLO, and requests in flight do not grow.
With --curve, p99 is drawn against load with the knee of each policy; a rate in % is of what all workers together can
serve.
"""

FIRST_PART = 0.4
"""First rate as a fraction of the workers' total capacity."""

RATES = "20%,40%,60%,70%,80%,90%,95%,105%"
CURVE_BLOCKS = 3


@click.command(epilog=EPILOG)
@click.argument("scenario")
@click.option("--policy", help="An entry's label, or a policy by name; needed unless --curve.")
@click.option("--slo", type=DURATION, help="Bound on p99, as 250ms or 1.5s.  [default: the scenario's]")
@SIMULATED
@click.option("--duration", type=POSITIVE, help="Seconds of arrivals per run.")
@click.option("--start", type=POSITIVE, help="First rate, per second.")
@click.option("--searches", type=click.IntRange(1, 100), help="Each of another seed.  [default: 1]")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the first search, or of the curve.")
@JSON
@click.option("--curve", is_flag=True, help="Draw latency against load instead of searching.")
@click.option("--rates", metavar="R,S,…", help=f"With --curve: per second, or in %.  [default: {RATES}]")
@click.option("--policies", metavar="A,B,…", help="With --curve: only these entries; or any policy.")
@click.option(
    "--blocks",
    type=click.IntRange(min=1),
    help=f"With --curve: runs of each rate.  [default: {CURVE_BLOCKS}]",
)
@click.option("--out", type=click.Path(path_type=Path), help="With --curve: a new directory for results.")
def capacity(
    scenario: str,
    simulated: bool,
    duration: float | None,
    seed: int | None,
    curve: bool,
    policy: str | None,
    slo: float | None,
    start: float | None,
    searches: int | None,
    file: Path | None,
    rates: str | None,
    policies: str | None,
    blocks: int | None,
    out: Path | None,
) -> int:
    """Search for the highest rate that POLICY sustains in SCENARIO: up by half, then bisection to 2 %."""
    from experiments.commands.session import runner_of

    if curve:
        search_only = {"policy": policy, "slo": slo, "start": start, "searches": searches, "json": file}
        require_none(search_only, "not with --curve")
        given = Overrides(policies=named(policies), seed=seed, blocks=blocks or CURVE_BLOCKS)
        chosen = runnable(scenario, given, simulated)
        return measure_curve(chosen, rates or RATES, duration, runner_of(simulated), out)
    curve_only = {"rates": rates, "policies": policies, "blocks": blocks, "out": out}
    require_none(curve_only, "only with --curve")
    if policy is None:
        raise BadInputError("--policy: name the policy whose capacity is wanted, or take --curve")
    chosen = runnable(scenario, Overrides(policies=(policy,), seed=seed), simulated)
    first, bound = start or FIRST_PART * pooled(chosen), slo or chosen.slo
    offered = at_rate(chosen, first, duration).load
    if offered.planned < LEAST_REQUESTS:
        raise BadInputError(
            f"--start, --duration: {offered.planned:,} requests in a run; a p99 takes {LEAST_REQUESTS:,}"
        )
    console = console_here()
    label, together = chosen.entries[0].label, with_digits(pooled(chosen), 4)
    within = f"{bound * chosen.time_scale * 1e3:g} ms"
    console.print(Text(f"{label}: p99 within {within}; the workers together serve {together}/s"))
    found: list[Capacity] = []
    trials: dict[int, list[RateTrial]] = {}
    runner, began_at = runner_of(simulated), time.monotonic()

    def attempt(number: int, rate: float) -> RateTrial:
        """One run at one rate, printed as one line; each search by `number` has a seed of its own."""
        scenario = at_rate(chosen, rate, duration)
        seconds = scenario.load.duration * scenario.time_scale
        with console.status(f"{per_second(rate)} for {seconds:g} s"), signals_interrupt():
            seed = int(np.random.default_rng([scenario.seed, number]).integers(1, 2**31))
            run = runner.run(scenario, PlannedRun(block=number, order=0, label=label, seed=seed), Observer())
        trial = tried(run, rate, bound)
        trials.setdefault(number, []).append(trial)
        console.print(line_of(trial, f"[{clock(time.monotonic() - began_at)}] "))
        return trial

    try:
        with signals_interrupt():
            for number in range(searches or 1):
                found.append(search(partial(attempt, number), first, LEAST_REQUESTS / offered.duration))
        was_stopped = False
    except (KeyboardInterrupt, Interrupted):
        print_stopped(console, "Nothing was left running.")
        was_stopped = True
        if len(found) in trials:
            found.append(so_far(trials[len(found)], "the search was stopped"))
    present(found, console)
    write_json(file, [{**asdict(one), "is_found": one.is_found} for one in found])
    return STOPPED if was_stopped else 0


def runnable(scenario: str, given: Overrides, simulated: bool) -> Scenario:
    """Scenario with the overrides. Raises `BadInputError`, also when the chosen world lacks a feature."""
    chosen = overridden(load_scenario(scenario), given)
    (require_simulated if simulated else require_live)(chosen)
    return chosen


def present(found: Sequence[Capacity], console: Console) -> None:
    """Print each capacity, and the mean of several searches with its interval."""
    for one in found:
        console.print(Text(capacity_in_words(one), style="bold" if one.is_found else "yellow"))
    rates = [one.passed for one in found if one.is_found]
    if len(rates) > 1:
        found_mean = typical(rates)
        ends = (found_mean.ratio, found_mean.low, found_mean.high)
        mean, low, high = (with_digits(rate, 4) for rate in ends)
        words = f"Over {len(rates)} searches: {mean}/s, 95 % interval {low}–{high}/s"
        console.print(Text(words, style="bold"))


def measure_curve(
    scenario: Scenario, rates: str, duration: float | None, runner: Runner, out: Path | None
) -> int:
    """Run the scenario at each rate and draw the curve; returns the exit code. Raises `ExperimentError`."""
    steps = [at_rate(scenario, rate, duration) for rate in rates_in(rates, pooled(scenario))]
    directory = out or new_directory(f"{scenario.name}-load")
    require_new(directory)
    console, code = console_here(), 0
    folders = [directory / f"rate-{number:02d}" for number in range(1, len(steps) + 1)]
    for step, folder in zip(steps, folders, strict=True):  # before any runs: those that are missing are known
        prepare(step, command_line(), folder, runner.name)
    for number, folder in enumerate(folders, 1):
        campaign = load_campaign(folder)
        rate = per_second(campaign.scenario.load.rate)
        console.print(Text(f"{rate}, rate {number} of {len(steps)}", style="bold"))
        try:
            with CampaignProgress(campaign, console) as progress:
                execute(campaign, folder, runner, progress)
        except KeyboardInterrupt:
            print_stopped(console, "Nothing was left running.")
            code = STOPPED
            break
    if is_curve(directory):
        report_curve(directory, console)
    return code


def per_second(rate: float) -> str:
    """Rate such as `312/s`."""
    return f"{with_digits(rate, 4)}/s"


def line_of(trial: RateTrial, prefix: str) -> Text:
    """Text such as `[0:12] 312/s passes: p99 201 ms, 0.00 % errors`, or the missed conditions."""
    numbers = f"p99 {in_ms(trial.p99)}, {100 * trial.errors:.2f} % errors"
    if trial.unusable:
        return Text(f"{prefix}{per_second(trial.rate)} cannot be judged: {trial.unusable}", style="yellow")
    if trial.passed:
        return Text(f"{prefix}{per_second(trial.rate)} passes: {numbers}", style="green")
    return Text(f"{prefix}{per_second(trial.rate)} fails: {'; '.join(trial.missed)}", style="red")


def capacity_in_words(found: Capacity) -> str:
    lowest = per_second(found.failed)
    if found.is_found:
        return f"Capacity: {per_second(found.passed)} ({lowest} fails), {len(found.trials)} trials"
    if found.unusable:
        passed = f"{per_second(found.passed)} passed" if found.passed else "nothing passed"
        return f"No capacity: {passed}, and {found.unusable}"
    if not found.passed:
        return f"No capacity: {lowest} fails too; lower ones take a longer --duration"
    return f"No capacity: {per_second(found.passed)} passes, and {lowest} was the lowest to fail"
