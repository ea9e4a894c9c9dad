"""Scenario and grid files with extreme or malformed values: each is rejected in one line."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from balancer.config.documents import MAX_DEPTH, MAX_FILE_BYTES
from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.scenario.files import first_complaint, load_scenario, packaged
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Scenario
from experiments.scenario.supported import complaints
from experiments.scenario.timeline import timeline
from experiments.simulator.run import simulate
from experiments.sweep.grid import checked_grid, load_grid
from tests.support.command_line import run_in_process

DOCUMENTS = {name: tomllib.loads(source.read_text(encoding="utf-8")) for name, source in packaged().items()}
NAN, INF = float("nan"), float("inf")
Path_ = tuple[str | int, ...]


def changed(document: dict[str, Any], path: Path_, value: object) -> dict[str, Any]:
    """The document with another value there."""
    made = copy.deepcopy(document)
    node: Any = made
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return made


def complaint(document: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as raised:
        Scenario.model_validate(document)
    return first_complaint(raised.value)


# --- values

BASE = DOCUMENTS["steady"]
REFUSED: tuple[tuple[Path_, object, str], ...] = (
    (("load", "rate"), INF, "load.rate: "),
    (("load", "rate"), NAN, "load.rate: "),
    (("load", "rate"), 1e308, "load.rate: "),
    (("load", "rate"), 5e-324, "load.rate: "),
    (("load", "rate"), 1e7, "requests; a run has at most 20,000,000"),
    (("load", "duration"), INF, "load.duration: "),
    (("load", "duration"), -1.0, "load.duration: "),
    (("load", "requests"), 10**18, "load.requests: "),
    (("regions",), [], "regions: "),
    (("regions", 0, "workers"), 10**9, "regions.0.workers: "),
    (("regions", 0, "slots"), 10**12, "regions.0.slots: "),
    (("regions", 0, "service"), "x", "regions.0.service: "),
    (("regions", 0, "service"), "fixed:9999999s", "regions.0.service: must take at most"),
    (("regions", 0, "rtt"), NAN, "regions.0.rtt: "),
    (("regions", 0, "name"), "../../etc", "regions.0.name: "),
    (("regions", 0, "name"), "a" * 1000, "regions.0.name: "),
    (("regions", 0, "idle_timeout"), INF, "regions.0.idle_timeout: "),
    (("name",), "../x", "name: "),
    (("name",), "a" * 300, "name: "),
    (("question",), "a\nb", "question: must have printable"),
    (("question",), "\x1b[31m?", "question: must have printable"),
    (("warmup",), 10**12, "warmup: "),
    (("blocks",), 10**9, "blocks: "),
    (("seed",), 10**400, "seed: "),
    (("time_scale",), 5e-324, "time_scale: "),
    (("timeout",), INF, "timeout: "),
    (("slo",), 1e308, "slo: "),
    (("preset",), [], "preset: unknown '[]'"),
    (("preset",), {"a": 1}, "preset: unknown"),
    (("entries",), 5, "entries: must be a list"),
    (("quick",), {"requests": 10**18}, "quick.requests: "),
    (("quick",), {"duration": INF}, "quick.duration: "),
    (("events",), [{"at": INF, "kind": "down"}], "events.0.at: "),
    (("events",), [{"at": 1, "kind": "slow", "value": NAN}], "events.0: value: must be from"),
    (("events",), [{"at": 1, "kind": "pause", "value": 0.01, "every": 5e-324}], "events.0.every: "),
    (("events",), [{"at": 1, "kind": "down", "target": "\x1b"}], "events.0.target: must have printable"),
    (("events",), [{"at": 1, "kind": "down"}] * 10_001, "events: "),
)


@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_extreme_and_malformed_values(path: Path_, value: object, message: str) -> None:
    """The line names the field."""
    found = complaint(changed(BASE, path, value))
    assert message in found
    assert found.isprintable()
    assert len(found) < 1000


def test_products_of_small_numbers_are_limited() -> None:
    """Workers, their slots, their states at balancers, bursts."""
    regions = [{"name": f"r{number}", "workers": 10_000, "rtt": 0.1} for number in range(11)]
    many = changed(changed(BASE, ("regions",), regions), ("home_region",), "r0")
    assert complaint(many).startswith("regions: 110,000 workers")
    slots = [{"name": "r0", "workers": 5000, "rtt": 0.1, "slots": 10_000}]
    assert "50,000,000 slots" in complaint(changed(many, ("regions",), slots))
    states = changed(changed(many, ("regions",), regions[:2]), ("balancers",), 1000)
    assert "balancers: 20,000,000 workers at balancers" in complaint(states)
    bursts = {
        "mode": "open",
        "arrivals": "burst",
        "peak": 200.0,
        "lasts": 1e-5,
        "every": 1e-4,
        "duration": 100.0,
    }
    assert "load: every: more than 100,000 times" in complaint(changed(BASE, ("load",), bursts))


def test_time_of_validation_with_many_names() -> None:
    """As many entries and events as are allowed."""
    entries = [{"label": f"e{number}", "policy": "random"} for number in range(1000)]
    entries[1]["repeat_of"] = "e999"
    events = [{"at": 1.0, "kind": "down", "target": f"{BASE['regions'][0]['name']}-0"}] * 10_000
    document = changed(changed(BASE, ("entries",), entries), ("events",), events)
    document.pop("preset", None)
    document["baseline"] = "e0"
    assert len(Scenario.model_validate(document).entries) == 1000


# --- files

TEXTS: dict[str, str | bytes] = {
    "deep lists": "x = " + "[" * 100_000,
    "deep tables": "[" + "a." * 5000 + "a]\nx = 1\n",
    "hexadecimal digits": f"rate = 0x{'f' * 5000}\n",
    "a little too deep": "[" + ".".join("a" * (MAX_DEPTH + 1)) + "]\nx = 1\n",
    "a long number": "seed = " + "9" * 5000,
    "no text": b"\xff\xfe\x00",
    "a control character": 'name = "a\x00b"',
    "twice": "seed = 1\nseed = 2\n",
    "long": "#" * (MAX_FILE_BYTES + 1),
    "nothing": "",
}


@pytest.mark.parametrize("case", TEXTS)
def test_files_that_are_no_scenario(tmp_path: Path, case: str) -> None:
    """Nor a grid."""
    text = TEXTS[case]
    path = tmp_path / "x.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for load in (lambda: load_scenario(str(path)), lambda: load_grid(path)):
        with pytest.raises(BadInputError) as raised:
            load()
        assert str(raised.value).startswith(f"{path}: ")
        assert "\n" not in str(raised.value)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    """A directory, nothing, a NUL."""
    (tmp_path / "directory.toml").mkdir()
    for name in ("directory.toml", "none.toml", "\0.toml"):
        with pytest.raises(BadInputError):
            load_scenario(f"{tmp_path}/{name}")


def test_the_message_of_the_program_is_one_line(tmp_path: Path) -> None:
    """Exit code 2, no traceback, no control characters."""
    path = tmp_path / "\x1b[31m.toml"
    path.write_text(f'name = "{"x" * 50_000}"\npreset = "{"y" * 50_000}"\n', encoding="utf-8")
    done = run_in_process(cli, "experiments", "run", "--simulated", str(path))
    line = done.stderr
    assert (done.returncode, done.stdout, line.count("\n")) == (2, "", 1)
    assert line.startswith("experiments: ")
    assert "\x1b" not in line
    assert len(line) < 3000


@pytest.mark.parametrize("seeds", [10**9, -1, INF, "all", [-1], []])
def test_the_number_of_seeds_is_limited(seeds: object) -> None:
    with pytest.raises(BadInputError, match=r"^g: seeds"):
        checked_grid({"name": "g", "scenarios": ["steady"], "policies": ["random"], "seeds": seeds}, "g")


# --- fuzzing

VALUES: tuple[Any, ...] = (
    *(0, -1, 10**9, 10**18, 10**400, 0.0, 1e308, 5e-324, INF, -INF, NAN, True, False, None),
    "",
    "x" * 10_000,
    "\x1b[31m",
    "a\nb",
    "../../x",
    "\0",
    "all",
    "random",
    "nan",
    "0-0ms",
    "lognormal:20ms,10",
    *([], {}, [[]], [1] * 100, {"a": {"a": {}}}, [{}]),
)
SHORT = 800
"""Requests, and workers times ten, of a scenario that is played as well."""


def paths_of(node: Any, above: Path_ = ()) -> Iterator[Path_]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from paths_of(value, (*above, key))


def mutated(document: dict[str, Any], rng: Random) -> dict[str, Any]:
    """One to three values are others, gone, or there twice."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice([*paths_of(document)])
        document = changed(document, path, rng.choice(VALUES))
        if rng.random() < 0.1:
            node: Any = document
            for key in path[:-1]:
                node = node[key]
            del node[path[-1]]
        if not document:
            return document
    return document


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(int(os.environ.get("STEELYARD_SEEDS", "4"))))
def test_any_change_is_rejected_or_can_be_run(seed: int, pytestconfig: pytest.Config) -> None:
    """Of every packaged scenario."""
    rng = Random((pytestconfig.getoption("--seed") or 0) + seed)
    for name, document in DOCUMENTS.items():
        for _ in range(12):
            with suppress(ValidationError, BadInputError):
                play(Scenario.model_validate(mutated(document, rng)), name)


def play(scenario: Scenario, name: str) -> None:
    chosen = overridden(scenario, Overrides(quick=True))
    assert all("\n" not in found for found in complaints(chosen)), name
    timeline(chosen, 1)
    load = chosen.load_of(chosen.entries[0])
    if load.planned <= SHORT and len(chosen.workers) <= SHORT // 10 and load.duration <= 60:
        simulate(chosen, chosen.entries[0], 0, 0, 1)


@pytest.mark.parametrize("key", ["home_region", "baseline", "question", "regions"])
def test_a_missing_key_is_named_in_plain_words(key: str) -> None:
    document = {name: value for name, value in BASE.items() if name != key}
    assert complaint(document) == f"{key}: is needed"
