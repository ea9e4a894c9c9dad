"""Thousands of endpoints that are added, changed and removed one by one: linear cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from balancer.config.schema.endpoint import EndpointConfig
from balancer.control.control_plane import ControlPlane
from policies.facts import AdminState
from tests.support.line_counts import growth
from tests.support.wireless import Wireless


def add(control_plane: ControlPlane, number: int) -> None:
    for at in range(number):
        control_plane.registry.add(EndpointConfig(id=f"e{at}", address=f"http://192.0.2.{at % 200}:{at + 1}"))


def weigh(control_plane: ControlPlane, number: int) -> None:
    for at in range(number):
        control_plane.registry.change(f"e{at}", weight=2.0)


def drain(control_plane: ControlPlane, number: int) -> None:
    for at in range(0, number, 4):
        control_plane.registry.change(f"e{at}", state=AdminState.DRAIN)


def remove(control_plane: ControlPlane, number: int) -> None:
    for at in range(number):
        control_plane.registry.remove(f"e{at}")


COMMANDS = (add, weigh, drain, remove)


@pytest.mark.no_cover
@pytest.mark.parametrize("what", COMMANDS, ids=lambda command: command.__name__)
def test_commands_are_linear(what: Callable[[ControlPlane, int], None]) -> None:
    """Twice as many commands on twice as many endpoints take twice as many steps."""
    control_planes = {}
    for number in (150, 300):
        control_planes[number] = Wireless().control_plane
        for before in COMMANDS[: COMMANDS.index(what)]:
            before(control_planes[number], number)
    assert growth(lambda number: what(control_planes[number], number), 150) <= 2.3


def test_added_and_removed_endpoints() -> None:
    """In router, pools, routes and names; two endpoints share a name."""
    control_plane = Wireless().control_plane
    cluster = control_plane.cluster
    for id_, host in (("a", "one.test"), ("b", "one.test"), ("c", "two.test")):
        control_plane.registry.add(EndpointConfig(id=id_, address=f"http://{host}:80"))
    routes = cluster.pools.routes
    assert (
        [*cluster.pools.by_id]
        == [*routes.by_id]
        == [*control_plane.registry.members]
        == ["w0", "a", "b", "c"]
    )
    assert [*routes.names.known] == ["one.test", "two.test"]
    control_plane.registry.remove("a")
    control_plane.registry.remove("c")
    assert [*cluster.pools.by_id] == [*routes.by_id] == [*control_plane.registry.members] == ["w0", "b"]
    assert [state.id for state in cluster.router.states] == ["w0", "b"]
    assert [*routes.names.known] == ["one.test"]


def test_removed_id_is_left_to_discovery() -> None:
    """A discovered endpoint with the same id takes its place, with the weight set by command."""
    control_plane = Wireless().control_plane
    cluster = control_plane.cluster
    control_plane.registry.add(EndpointConfig(id="a", address="http://192.0.2.1:80"))
    control_plane.registry.replace("file", [EndpointConfig(id="a", address="http://192.0.2.2:80")])
    control_plane.registry.change("a", weight=3.0)
    state = cluster.router.find("a")
    control_plane.registry.remove("a")
    assert control_plane.registry.member("a").source == "file"
    assert (state.endpoint.address, state.weight) == ("http://192.0.2.2:80", 3.0)
    assert cluster.pools.by_id["a"].endpoint.address == "http://192.0.2.2:80"
    assert cluster.pools.routes.by_id["a"].host == "192.0.2.2"
    assert state.connections is cluster.pools.by_id["a"]


def test_tls_and_keep_alive_belong_to_their_endpoint() -> None:
    """Another endpoint with the same id does not inherit them."""
    control_plane = Wireless().control_plane
    cluster = control_plane.cluster
    own = {"id": "a", "address": "https://192.0.2.1:443", "tls": {"verify": False}, "keep_alive": False}
    for _ in range(2):
        control_plane.registry.add(EndpointConfig.model_validate(own))
        met = cluster.pools.tls_of(cluster.router.find("a").endpoint, "http/1.1")
        assert met is not None
        assert not met.config.verify
        assert not cluster.pools.by_id["a"].keeps_alive
        control_plane.registry.remove("a")
        control_plane.registry.add(EndpointConfig(id="a", address="https://192.0.2.1:443"))
        met = cluster.pools.tls_of(cluster.router.find("a").endpoint, "http/1.1")
        assert met is not None
        assert met.config.verify
        assert cluster.pools.by_id["a"].keeps_alive
        control_plane.registry.remove("a")
