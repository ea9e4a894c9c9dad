"""Every key of `[balancer]` is simulated, meaningless in virtual time, or refused, and what the table says is true."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from balancer.config.keys import dotted, keys_of, table_at
from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.results.directory import plan_block
from experiments.scenario.balancer_keys import MEANINGLESS, READ_ANYWAY, REFUSED, SIMULATED, SWITCHES, UNREAD
from experiments.scenario.files import unread_keys
from experiments.scenario.mechanisms import Mechanisms
from experiments.scenario.scenario import Region, Scenario
from experiments.scenario.supported import require_simulated
from experiments.simulator.run import simulate
from experiments.sweep.cells import Cell, cells_of
from experiments.sweep.grid import Grid
from tests.support.command_line import complaint

KEYS = [dotted(place) for place in keys_of(Mechanisms) if table_at(Mechanisms, place) is None]
FULL = {"limits": {"in_flight": 1}}
"""One request at a time, half of what arrives: the wait queue grows."""

CHECKS = {"health_checks": {"path": "/healthz", "interval": 1.0, "fast_interval": 0.5}}
ADAPTIVE = {"concurrency": {"adaptive": True, "initial": 2, "minimum": 1, "maximum": 6}}
HEDGING = {"hedging": {"enabled": True}}
EJECTED = {"outlier_detection": {"failures": 2, "base_time": 0.5}}
BY_RATE = {"outlier_detection": {"failures": 0, "window": 6.0}}

VARIED: dict[str, tuple[dict[str, Any], object, object]] = {
    "retries": ({}, 2, 0),
    "retry.share": ({"retry": {"per_second": 0.0}}, 0.2, 0.0),
    "retry.per_second": ({"retry": {"share": 0.0}}, 10.0, 0.0),
    "retry.statuses": ({}, [502, 503], [500]),
    "hedging.enabled": ({}, False, True),
    "hedging.quantile": (HEDGING, 0.95, 0.6),
    "hedging.share": (HEDGING, 0.05, 0.001),
    "hedging.minimum": (HEDGING, 0.01, 3.0),
    "health_checks.path": ({"health_checks": {"interval": 1.0, "fast_interval": 0.5}}, None, "/healthz"),
    "health_checks.status": (CHECKS, 200, 503),
    "health_checks.interval": (CHECKS, 1.0, 5.0),
    "health_checks.fast_interval": (CHECKS, 0.5, 1.0),
    "health_checks.timeout": (CHECKS, 1.0, 0.001),
    "health_checks.rise": (CHECKS, 2, 6),
    "health_checks.fall": (CHECKS, 3, 1),
    "outlier_detection.failures": ({}, 5, 1),
    "outlier_detection.success_rate": (BY_RATE, 0.8, 0.0),
    "outlier_detection.window": (BY_RATE, 30.0, 1.0),
    "outlier_detection.min_requests": (BY_RATE, 5, 500),
    "outlier_detection.latency": ({}, 0.0, 1.5),
    "outlier_detection.base_time": ({}, 30.0, 1.0),
    "outlier_detection.max_time": (EJECTED, 300.0, 0.5),
    "panic.threshold": (CHECKS, 0.0, 1.0),
    "panic.overprovisioning": ({}, 1.0, 3.0),
    "slow_start.window": ({}, 0.0, 5.0),
    "slow_start.minimum": ({"slow_start": {"window": 5.0}}, 0.1, 0.9),
    "pool.idle_timeout": ({}, 30.0, 0.3),
    "pool.risk": ({}, 0.01, 0.0),
    "limits.queue": (FULL, 10_000, 3),
    "limits.in_flight": ({}, 4, 2),
    "queue.order": (FULL, "fifo", "adaptive"),
    "concurrency.adaptive": ({"concurrency": {"initial": 2, "minimum": 1, "maximum": 6}}, False, True),
    "concurrency.initial": (ADAPTIVE, 2, 5),
    "concurrency.minimum": (ADAPTIVE, 1, 2),
    "concurrency.maximum": (ADAPTIVE, 2, 9),
    "concurrency.tolerance": (ADAPTIVE, 1.1, 3.0),
    "timeouts.connect": ({}, 2.0, 0.005),
    "timeouts.first_byte": ({}, 25.0, 0.4),
    "timeouts.attempt": ({}, None, 0.3),
    "timeouts.queue": (FULL, 30.0, 0.2),
    "shared.enabled": ({"shared": {}}, False, True),
    "shared.every": ({"shared": {"enabled": True}}, 0.02, 0.5),
    "shared.delay": ({"shared": {"enabled": True}}, 0.001, 0.5),
}
"""Simulated key -> other settings, and two values with which the runs of `scenario` differ."""

BY_TURNS = ("outlier_detection.success_rate", "outlier_detection.min_requests")
"""Keys that show only where a worker in trouble gets as many requests as the others."""

QUICK = ("retries", "limits.queue", "panic.threshold", "shared.enabled", "timeouts.attempt")
"""Keys of the first tier."""

OFF: dict[str, dict[str, Any]] = {
    "retry": {"retries": 0},
    "outlier_detection": {"outlier_detection": {"failures": 0, "success_rate": 0.0}},
    **{table: {} for table in ("hedging", "health_checks", "concurrency", "slow_start", "shared")},
}
"""Table of a mechanism -> settings with which it is off."""

OTHERS = (
    1,
    5,
    1024,
    1_000_000,
    True,
    False,
    "/healthz",
    "X-N",
    "GET",
    "http",
    ["UNAVAILABLE"],
    [429],
    {"a": "b"},
)
"""Values of which one at least is allowed for each key and not its default."""

READ = [*READ_ANYWAY, *(key for keys in SWITCHES.values() for key in keys)]

OF_MECHANISMS = [key for key in VARIED if key.partition(".")[0] in OFF and key not in READ]
"""Keys that are not read where their mechanism is off."""


def setting(key: str, value: object, others: dict[str, Any] | None = None) -> dict[str, Any]:
    """Settings of `[balancer]` with the key; None leaves it out."""
    tables = deepcopy(others or {})
    table, dot, name = key.partition(".")
    if value is None:
        return tables
    return tables | {table: tables.get(table, {}) | {name: value} if dot else value}


def other(key: str) -> object:
    """A value of the key that is allowed and not its default."""
    for value in OTHERS:
        try:
            used = Mechanisms.model_validate(setting(key, value))
        except ValidationError:
            continue
        if attrgetter(key)(used) != attrgetter(key)(Mechanisms()):
            return value
    raise AssertionError(f"no other value for {key}: add one")


def scenario(settings: dict[str, Any], **rest: object) -> Scenario:
    """Three workers with every kind of trouble, at 60 % of their capacity, and two balancers."""
    troubles = (
        {"at": 2.0, "lasts": 2.0, "target": "near-0", "kind": "slow", "value": 10.0},
        {"at": 5.0, "lasts": 3.0, "target": "near-1", "kind": "down"},
        {"at": 8.0, "lasts": 1.0, "target": "near-1", "kind": "rtt", "value": 0.3},
        {"at": 9.0, "lasts": 4.0, "target": "near-2", "kind": "fail", "value": 0.7},
        {"at": 14.0, "lasts": 2.0, "target": "near-0", "kind": "hang", "value": 1.0},
        {"at": 17.0, "lasts": 2.0, "target": "near-1", "kind": "unhealthy"},
        {"at": 21.0, "lasts": 2.0, "target": "near-0", "kind": "slow", "value": 5.0},
    )
    document: dict[str, Any] = {
        **{"name": "troubles", "question": "Does the key change the run?", "baseline": "one"},
        **{"home_region": "near", "timeout": 3.0, "warmup": 5, "balancers": 2},
        "load": {"mode": "open", "rate": 90.0, "duration": 24.0},
        "regions": [{"name": "near", "workers": 3, "rtt": 0.01, "idle_timeout": 1.0}],
        "events": troubles,
        "balancer": settings,
        "entries": [{"label": "one", "policy": "least-in-flight"}],
    }
    return Scenario.model_validate(document | rest)


def figures(
    settings: dict[str, Any], policy: str = "least-in-flight", backups: int = 0
) -> list[tuple[float, int, int]]:
    """Latency, kind and attempts of every request of a simulated run, perhaps with workers for backup."""
    return figures_of(json.dumps(settings, sort_keys=True), policy, backups)


@cache
def figures_of(settings_json: str, policy: str, backups: int) -> list[tuple[float, int, int]]:
    """Runs of equal settings are equal, so each is simulated once."""
    settings = json.loads(settings_json)
    given = scenario(settings, entries=[{"label": "one", "policy": policy}])
    if backups:
        far = Region(name="far", workers=backups, rtt=0.05, priority=1)
        given = given.model_copy(update={"regions": (*given.regions, far)})
    samples = simulate(given, given.entries[0], 0, 0, plan_block(given, 0)[0].seed).samples
    columns = (samples.latency.tolist(), samples.kind.tolist(), samples.attempts.tolist())
    return list(zip(*columns, strict=True))


def cells_with(knob: str, values: Sequence[object], settings: dict[str, Any] | None = None) -> list[Cell]:
    """Cells of a grid with a knob and further settings of `[balancer]`."""
    policies = [{"policy": "random", "balancer": settings or {}}]
    grid = {"name": "g", "scenarios": ["steady"], "policies": policies, "seeds": 1, "knobs": {knob: values}}
    return cells_of(Grid.model_validate(grid), "")


def test_every_key_is_in_one_table() -> None:
    """A new key is refused; if it is simulated, it needs a row here."""
    assert sorted([*SIMULATED, *MEANINGLESS, *REFUSED]) == sorted(KEYS)
    assert VARIED.keys() == SIMULATED


@pytest.mark.parametrize(
    "key",
    [pytest.param(key, marks=[] if key in QUICK else pytest.mark.second_tier) for key in sorted(VARIED)],
)
def test_simulated_key_changes_a_run(key: str) -> None:
    others, one, other = VARIED[key]
    policy = "round-robin" if key in BY_TURNS else "least-in-flight"
    backups = 2 if key == "panic.overprovisioning" else 0
    assert figures(setting(key, one, others), policy, backups) != figures(
        setting(key, other, others), policy, backups
    )


def test_meaningless_keys_change_nothing() -> None:
    changed: dict[str, Any] = {}
    for key in MEANINGLESS:
        changed = setting(key, other(key), changed)
    assert figures(changed) == figures({})


@pytest.mark.parametrize("key", MEANINGLESS)
def test_knob_over_a_meaningless_key_is_refused(key: str) -> None:
    """It would give every cell twice, under two names. A scenario may state it."""
    with pytest.raises(BadInputError, match=rf"^steady: knobs\.balancer\.{key}: decides nothing"):
        cells_with(f"balancer.{key}", [other(key)])


@pytest.mark.parametrize("table", OFF)
def test_keys_of_a_mechanism_that_is_off_change_nothing(table: str) -> None:
    """A scenario may state them."""
    off = changed = OFF[table]
    for key in OF_MECHANISMS:
        if key.startswith(f"{table}."):
            changed = setting(key, VARIED[key][2], changed)
    assert figures(changed) == figures(off)


@pytest.mark.parametrize("key", OF_MECHANISMS)
def test_key_of_a_mechanism_is_a_knob_where_that_is_on(key: str) -> None:
    """Where it is off, it would give every cell twice."""
    (others, *values), off = VARIED[key], OFF[key.partition(".")[0]]
    with pytest.raises(BadInputError, match=rf"^knobs: one of balancer\.{key} decides nothing .* is off"):
        cells_with(f"balancer.{key}", values, off)
    on = deepcopy(others)
    on.get(key.partition(".")[0], {}).pop(key.partition(".")[2], None)  # or it would hide the knob
    assert len(cells_with(f"balancer.{key}", values, on)) == 2


@pytest.mark.parametrize("key", READ_ANYWAY)
def test_key_that_is_read_without_its_mechanism_is_a_knob(key: str) -> None:
    assert figures(setting(key, VARIED[key][2])) != figures({})
    assert len(cells_with(f"balancer.{key}", VARIED[key][1:])) == 2


def test_refused_key_that_nothing_reads_is_accepted() -> None:
    assert UNREAD == {"health_checks.first_connect": "health_checks.path"}
    settings = setting("health_checks.first_connect", False, CHECKS)
    require_simulated(scenario(settings))
    assert figures(settings) == figures(CHECKS)


@pytest.mark.parametrize("key", REFUSED)
def test_key_that_is_not_simulated_is_refused_by_name(key: str) -> None:
    """By a run, by an entry alone, and as a knob of a sweep; with its default it is accepted."""
    settings = setting(key, other(key))
    given = scenario({}, entries=[{"label": "one", "policy": "random", "balancer": settings}])
    message = rf"entry \S+: balancer\.{key} is not simulated \("
    with pytest.raises(BadInputError, match=message):
        require_simulated(given)
    with pytest.raises(BadInputError, match=message):
        simulate(given, given.entries[0], 0, 0, 1)
    with pytest.raises(BadInputError, match=message):
        cells_with(f"balancer.{key}", [other(key)])


def test_refusal_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """Before anything is written; what the key should be is named."""
    text = Path("experiments/scenarios/steady.toml").read_text("utf-8")
    for key, message in (
        ("timeouts = { total = 5.0 }", "balancer.timeouts.total is not simulated (first_byte and attempt "),
        ("health_checks = { path = '/' }", "balancer.health_checks.path must be '/healthz'"),
        ("shared = { enabled = true }", "balancer.shared.enabled: is not read with balancers = 1"),
    ):
        file = tmp_path / "mine.toml"
        file.write_text(f"{text}\n[balancer]\n{key}\n", "utf-8")
        out = tmp_path / "out"
        assert message in complaint(cli, "experiments", "run", str(file), "--simulated", "--out", str(out))
        assert not out.exists()


OPEN = {"mode": "open", "rate": 9.0}


@pytest.mark.parametrize(
    ("load", "key"),
    [
        (OPEN | {"batch": 7}, "batch"),
        (OPEN | {"requests": 7}, "requests"),
        (OPEN | {"peak": 20.0}, "peak"),
        (OPEN | {"arrivals": "constant", "every": 3.0}, "every"),
        (OPEN | {"arrivals": "ramp", "peak": 20.0, "lasts": 3.0}, "lasts"),
        (OPEN | {"arrivals": "mmpp", "peak": 20.0, "lasts": 1.0, "every": 3.0, "start": 2.0}, "start"),
        (OPEN | {"arrivals": "replay", "file": "x"}, "rate"),
        (OPEN | {"file": "x"}, "file"),
        ({"mode": "closed", "rate": 9.0}, "rate"),
        ({"mode": "closed", "duration": 9.0}, "duration"),
        ({"mode": "closed", "arrivals": "constant"}, "arrivals"),
    ],
)
def test_key_of_the_load_that_is_not_read_is_refused(load: dict[str, Any], key: str) -> None:
    (complaint,) = unread_keys(scenario({}, load=load, events=[]))
    assert complaint.startswith(f"load.{key}: is not read with ")


def test_batch_of_an_open_loop_is_refused() -> None:
    """Of an entry, and as a knob."""
    (complaint,) = unread_keys(scenario({}, entries=[{"label": "one", "policy": "random", "batch": 3}]))
    assert complaint == "entries.0.batch: is not read with mode = 'open'; leave it out"
    with pytest.raises(BadInputError, match=r"knobs\.load\.batch: is not read with mode = 'open'"):
        cells_with("load.batch", [50, 60])
