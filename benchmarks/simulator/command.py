"""`python -m benchmarks simulator` and `python -m benchmarks certificate`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.harness.options import CHECK, JSON
from benchmarks.simulator.speed import REQUESTS, ROUNDS, measure_speed
from experiments.platform.session import Session


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=ROUNDS,
    show_default=True,
    help="Runs of each simulator.",
)
@JSON
@CHECK
def simulator(rounds: int, file: Path | None, check: bool) -> int:
    """Measure simulated requests per second of CPU time, beside SimPy with the same model."""
    return measure_speed(Session(file, check), REQUESTS, rounds)


@click.command()
@click.option(
    "--samples",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="Multiple of the usual number of samples.",
)
@JSON
def certificate(samples: float, file: Path | None) -> int:
    """Compare the simulator's means and quantiles with closed forms. Exit code 1 when one is out of its bound."""
    from benchmarks.simulator.cases import certify

    return certify(Session(file, is_checked=True), samples)
