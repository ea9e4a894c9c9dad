"""Options that several benchmarks share, and validation of their values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import click

from experiments.commands.options import Parsed
from experiments.errors import BadInputError
from experiments.platform import cpu_time
from policies import registry
from policies.errors import PoliciesError
from policies.loading.reference import located_here
from workers.durations import parse_duration

JSON = click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all results to this file."
)
CHECK = click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
SEED = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Seed of everything drawn at random: order, load, faults.",
)
QUICK = click.option("--quick", is_flag=True, help="A short version: an impression, and for tests.")
POLICY = click.option("--policy", default="least-in-flight", show_default=True, help="Policy of Steelyard.")
PEERS = click.option(
    "--peers", "others", default="none", metavar="A,B,…|none", show_default=True, help="Other proxies."
)


def names_in(text: str) -> list[str]:
    """Split a comma-separated list; empty items are dropped."""
    return [name.strip() for name in text.split(",") if name.strip()]


def known_names(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Split a comma-separated list of at least one known name. Raises `BadInputError`."""
    names, known = names_in(text), list(known)
    for name in names or [""]:
        if name not in known:
            raise BadInputError(f"{option}: unknown {name!r}; known: {', '.join(known)}")
    return names


def known_policies(names: list[str]) -> list[str]:
    """Check that every policy can be built without options; returns them without duplicates. Raises `BadInputError`.

    A class in a file is named by its absolute path, because balancers are started in other directories.
    """
    if not names:
        raise BadInputError("--policies: name at least one, separated by commas")
    names = located_here(names)
    try:
        for name in names:
            registry.make(name, {}, Random(0))
    except PoliciesError as error:
        raise BadInputError(f"--policies: {error}") from None
    return list(dict.fromkeys(names))


def cores_for(pin: str) -> tuple[int, int]:
    """Cores of the proxy and of everything else, for `--pin one` or `split`. Raises `BadInputError`."""
    if not cpu_time.is_known_here():
        raise BadInputError("CPU time is read as Linux accounts for it, and processes are pinned: Linux only")
    found = cpu_time.cores()
    if pin == "split" and len(found) < 2:
        raise BadInputError("--pin: split needs two cores, and there is one")
    return found[0], found[0] if pin == "one" else found[1]


def proxy_and_load_cores() -> tuple[int, int]:
    """Core of the proxy, and of the load generator: the second core if there is one. Raises `BadInputError`."""
    return cores_for("one")[0], cores_for("split" if len(cpu_time.cores()) > 1 else "one")[1]


def seconds_in(text: str) -> float:
    """Seconds of a duration within the bounds of `SECONDS`. Raises `ValueError`."""
    if not 0.1 <= (seconds := parse_duration(text)) <= 600:
        raise ValueError("out of bounds")
    return seconds


SECONDS = Parsed("duration", seconds_in, "a duration such as 3s or 300ms, from 100ms to 600s")
