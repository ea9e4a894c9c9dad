"""Load shedding in a simulated pool: above its capacity, just below it, and where a worker hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.scenario.files import load_scenario
from experiments.simulator.run import simulate
from experiments.sweep.outcome import numbers_of

TEMPLATE = """
name = "pool"
question = "Which requests are answered?"
baseline = "sheds"
home_region = "home"
slo = 0.2
timeout = 2.0
blocks = 1
balancers = {balancers}
{more}

[load]
mode = "open"
rate = {rate}
duration = 60.0

[[entries]]
label = "sheds"
policy = "steelyard"

[[entries]]
label = "waits"
policy = {{ name = "steelyard", shed = false }}

[[regions]]
name = "home"
workers = 4
slots = 2
rtt = 0.001
service = "exponential:20ms"
"""

CAPACITY = 400.0

SLOW = """
[[events]]
at = 20.0
lasts = 6.0
target = "home"
kind = "slow"
value = {value}
"""

HANG = """
[[events]]
at = 20.0
lasts = 10.0
target = "home-0"
kind = "hang"
value = 1.0
"""


def both(
    tmp_path: Path, load: float, events: str = "", **settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers of a run with and one without shedding; `load` is relative to the capacity."""
    path = tmp_path / "pool.toml"
    path.write_text(
        TEMPLATE.format(rate=load * CAPACITY, **({"balancers": 1, "more": ""} | settings)) + events
    )
    scenario = load_scenario(str(path))
    first, second = (numbers_of(simulate(scenario, entry, 1, 0, 0), scenario) for entry in scenario.entries)
    return first, second


@pytest.mark.parametrize("load", [1.1, 1.5])
def test_above_capacity_most_of_it_is_used_for_answers_in_time(tmp_path: Path, load: float) -> None:
    """The first seconds are lost: nothing is rejected until clients have given up."""
    sheds, waits = both(tmp_path, load)
    assert sheds["goodput"] * load > 0.6
    assert sheds["ok"] / sheds["requests"] * load > 0.85
    assert waits["goodput"] * load < 0.1


def test_balancers_that_share_nothing_shed_as_well(tmp_path: Path) -> None:
    sheds, waits = both(tmp_path, 1.1, balancers=4)
    assert sheds["goodput"] * 1.1 > 0.5
    assert waits["goodput"] * 1.1 < 0.1


def test_pool_recovers_from_a_queue_that_outlasts_its_cause(tmp_path: Path) -> None:
    """At 96 % of the capacity a queue of timed-out requests stays after the slowdown that made it."""
    sheds, waits = both(tmp_path, 0.96, SLOW.format(value=4.0))
    assert sheds["goodput"] > 0.65
    assert waits["goodput"] < 0.5


ATTEMPTS = "[balancer.timeouts]\nattempt = 1.0\n"


@pytest.mark.parametrize(
    ("events", "more"), [(SLOW.format(value=1.6), ""), (HANG, ATTEMPTS)], ids=["queue", "hang"]
)
def test_nothing_is_rejected_where_no_request_fails_in_a_queue(
    tmp_path: Path, events: str, more: str
) -> None:
    """A queue of 0.5 s or more, or a worker that answers nothing until attempts time out."""
    sheds, waits = both(tmp_path, 0.7, events, more=more)
    assert waits["max"] > 0.5
    assert sheds["ok"] == waits["ok"] == sheds["requests"]


def test_retries_of_attempts_that_time_out_do_not_keep_the_pool_overloaded(tmp_path: Path) -> None:
    """At 70 % of the capacity: retried after 1 s in a queue of a short slowdown, they would be more than it serves."""
    sheds, waits = both(tmp_path, 0.7, SLOW.format(value=2.0), more=ATTEMPTS)
    assert sheds["goodput"] > 0.6
    assert waits["goodput"] < 0.45
