"""`benchmarks simulator` and `benchmarks certificate`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.simulator.speed import REQUESTS, ROUNDS, bench_simulator
from experiments.terminal import require_writable


@click.command()
@click.option("--rounds", type=click.IntRange(1, 1000), default=ROUNDS, show_default=True, help="Of each.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all rounds there."
)
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def simulator(rounds: int, file: Path | None, check: bool) -> int:
    """Measure simulated requests per second of CPU time, beside SimPy with the same model."""
    require_writable("--json", file)
    return bench_simulator(REQUESTS, rounds, file, check=check)


@click.command()
@click.option(
    "--samples",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="Multiple of the usual number of samples.",
)
def certificate(samples: float) -> int:
    """Compare the simulator's means and quantiles with closed forms. Exit code 1 when one is out of its bound."""
    from benchmarks.simulator.certificate import present_certificate

    return present_certificate(samples)
