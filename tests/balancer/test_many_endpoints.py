"""Thousands of endpoints that are added, changed and removed one by one: each costs what it costs, and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from balancer.config.sections import EndpointConfig
from balancer.unit import Unit
from policies.routing.facts import Standing
from tests.balancer.wireless import Wireless
from tests.steps import growth


def add(unit: Unit, number: int) -> None:
    for at in range(number):
        unit.roster.add(EndpointConfig(id=f"e{at}", address=f"http://192.0.2.{at % 200}:{at + 1}"))


def weigh(unit: Unit, number: int) -> None:
    for at in range(number):
        unit.roster.change(f"e{at}", weight=2.0)


def drain(unit: Unit, number: int) -> None:
    for at in range(0, number, 4):
        unit.roster.change(f"e{at}", state=Standing.DRAINING)


def remove(unit: Unit, number: int) -> None:
    for at in range(number):
        unit.roster.remove(f"e{at}")


COMMANDS = (add, weigh, drain, remove)


@pytest.mark.no_cover
@pytest.mark.parametrize("what", COMMANDS, ids=lambda command: command.__name__)
def test_n_commands_are_linear(what: Callable[[Unit, int], None]) -> None:
    """Twice as many commands over twice as many endpoints take twice as many steps."""
    units = {}
    for number in (150, 300):
        units[number] = Wireless().unit
        for before in COMMANDS[: COMMANDS.index(what)]:
            before(units[number], number)
    assert growth(lambda number: what(units[number], number), 150) <= 2.3


def test_each_is_there_and_gone() -> None:
    """In the router, the pools, the routes and the names that are looked up; two share a name."""
    unit = Wireless().unit
    for id_, host in (("a", "one.test"), ("b", "one.test"), ("c", "two.test")):
        unit.roster.add(EndpointConfig(id=id_, address=f"http://{host}:80"))
    routes = unit.pools.routes
    assert [*unit.pools.by_id] == [*routes.by_id] == [*unit.roster.members] == ["w0", "a", "b", "c"]
    assert [*routes.names.known] == ["one.test", "two.test"]
    unit.roster.remove("a")
    unit.roster.remove("c")
    assert [*unit.pools.by_id] == [*routes.by_id] == [*unit.roster.members] == ["w0", "b"]
    assert [state.id for state in unit.router.states] == ["w0", "b"]
    assert [*routes.names.known] == ["one.test"]


def test_a_removed_one_leaves_its_id_to_discovery() -> None:
    """Where a source of discovery names it as well, that one takes its place, with the weight that was ordered."""
    unit = Wireless().unit
    unit.roster.add(EndpointConfig(id="a", address="http://192.0.2.1:80"))
    unit.roster.replace("file", [EndpointConfig(id="a", address="http://192.0.2.2:80")])
    unit.roster.change("a", weight=3.0)
    state = unit.router.find("a")
    unit.roster.remove("a")
    assert unit.roster.member("a").source == "file"
    assert (state.endpoint.address, state.weight) == ("http://192.0.2.2:80", 3.0)
    assert unit.pools.by_id["a"].endpoint.address == "http://192.0.2.2:80"
    assert unit.pools.routes.by_id["a"].host == "192.0.2.2"
    assert state.connections is unit.pools.by_id["a"]


def test_a_table_tls_and_keep_alive_go_with_their_endpoint() -> None:
    """Its id may be taken by another that has none."""
    unit = Wireless().unit
    own = {"id": "a", "address": "https://192.0.2.1:443", "tls": {"verify": False}, "keep_alive": False}
    for _ in range(2):
        unit.roster.add(EndpointConfig.model_validate(own))
        met = unit.pools.tls.of(unit.router.find("a").endpoint)
        assert met is not None
        assert not met.config.verify
        assert not unit.pools.by_id["a"].keeps_alive
        unit.roster.remove("a")
        unit.roster.add(EndpointConfig(id="a", address="https://192.0.2.1:443"))
        met = unit.pools.tls.of(unit.router.find("a").endpoint)
        assert met is not None
        assert met.config.verify
        assert unit.pools.by_id["a"].keeps_alive
        unit.roster.remove("a")
