"""Route watch: departures of connect times, regions, networks of a name, and connections of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.config.schema.names import RouteWatchConfig
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.route_watch import MOST_EVENTS, RouteWatch, network_of
from balancer.upstream.dial.target import NetworkRoute, Routes
from policies.facts import AdminState, Endpoint
from tests.support.admin_requests import metrics, status
from tests.support.stage import ManualClock, Stage
from tests.support.wire import get, response
from tests.support.wireless import Wireless

USUAL, DETOUR = 0.09, 0.72


class RecordedWatch:
    """A watch of three endpoints, two of them in one region, with its log lines."""

    def __init__(self, is_enabled: bool = True) -> None:
        self.clock = ManualClock()
        self.logged: list[str] = []
        self.watch = RouteWatch(RouteWatchConfig(enabled=is_enabled), self.clock.now, self.logged.append)
        regions = {"e0": "emea", "e1": "emea", "u0": "us"}
        routes = Routes()
        self.by_id = {
            id_: NetworkRoute(Endpoint(id_, "http://x", region), routes) for id_, region in regions.items()
        }
        for route in self.by_id.values():
            self.watch.add(route)

    def connect(self, trips: dict[str, float], times: int, tls: float = 0.0) -> None:
        """Connect to these endpoints every ten seconds, `times` times."""
        for _ in range(times):
            self.clock.at += 10.0
            for id_, trip in trips.items():
                self.watch.opened(self.by_id[id_], DialTimes(0.0, trip, trip + tls), self.clock.at)

    @property
    def event_kinds(self) -> list[tuple[str, str]]:
        return [(event.what, event.who) for event in self.watch.events]


def test_departure_of_an_endpoint_is_logged_once() -> None:
    """Logged once within a minute with both figures, and once when it ends."""
    recorded = RecordedWatch()
    recorded.connect({"e0": USUAL, "e1": USUAL}, 10)
    recorded.connect({"e0": DETOUR, "e1": USUAL}, 4)
    assert recorded.logged == []
    recorded.connect({"e0": DETOUR, "e1": USUAL}, 1)
    (line,) = recorded.logged
    assert all(part in line for part in ("e0: ", "720 ms", "90 ms"))
    assert recorded.by_id["e0"].trip.is_departed
    recorded.connect({"e0": DETOUR, "e1": USUAL}, 20)
    recorded.connect({"e0": USUAL, "e1": USUAL}, 7)
    assert recorded.event_kinds == [("connect_departed", "e0"), ("connect_returned", "e0")]
    assert recorded.watch.counts == {"connect_departed": 1, "connect_returned": 1}


def test_departure_of_a_region() -> None:
    """When all of its endpoints have departed, until the last one returns."""
    recorded = RecordedWatch()
    recorded.connect(dict.fromkeys(recorded.by_id, USUAL), 10)
    recorded.connect({"e0": DETOUR, "e1": DETOUR, "u0": USUAL}, 10)
    assert recorded.event_kinds == [
        ("connect_departed", "e0"),
        ("connect_departed", "e1"),
        ("region_departed", "emea"),
    ]
    assert recorded.watch.regions_departed == {"emea"}
    recorded.connect(dict.fromkeys(recorded.by_id, USUAL), 10)
    assert recorded.event_kinds[-1] == ("region_returned", "emea")
    assert recorded.watch.regions_departed == set()


def test_region_returns_when_departed_endpoints_are_removed() -> None:
    """The region has no departed endpoint then."""
    recorded = RecordedWatch()
    recorded.connect(dict.fromkeys(recorded.by_id, USUAL), 10)
    recorded.connect({"e0": DETOUR, "e1": DETOUR}, 10)
    for gone in ("e0", "e1"):
        recorded.watch.remove(recorded.by_id[gone])
    assert recorded.event_kinds[-1] == ("region_returned", "emea")
    assert recorded.watch.regions_departed == set()


def test_region_of_one_endpoint_has_no_event() -> None:
    """The region event is omitted."""
    recorded = RecordedWatch()
    recorded.connect({"u0": USUAL}, 10)
    recorded.connect({"u0": DETOUR}, 10)
    assert recorded.event_kinds == [("connect_departed", "u0")]


def test_tls_handshake_has_its_own_baseline() -> None:
    """The connect time may be unchanged."""
    recorded = RecordedWatch()
    recorded.connect({"u0": USUAL}, 10, tls=0.1)
    recorded.connect({"u0": USUAL}, 10, tls=0.9)
    (line,) = recorded.logged
    assert all(part in line for part in ("u0: ", "TLS handshake", "900 ms", "100 ms"))


def test_events_are_bounded() -> None:
    """Old events are dropped, and all are counted."""
    recorded = RecordedWatch()
    for number in range(MOST_EVENTS + 20):
        recorded.watch.resolved("api.test", (f"10.{number}.0.1",), 0.0)
    assert len(recorded.watch.events) == MOST_EVENTS
    assert recorded.watch.counts["network"] == MOST_EVENTS + 19
    assert recorded.watch.events[-1].number == MOST_EVENTS + 19


def test_new_network_of_a_name_is_logged() -> None:
    """Only a network that is new for the name."""
    recorded = RecordedWatch()
    for addresses in (("192.0.2.1",), ("192.0.2.77",), ("198.51.100.1", "192.0.2.1"), ("198.51.100.9",)):
        recorded.watch.resolved("api.test", addresses, 0.0)
    assert recorded.logged == []
    recorded.watch.resolved("api.test", ("203.0.113.5",), 0.0)
    recorded.watch.resolved("api.test", ("192.0.2.5",), 0.0)
    (line,) = recorded.logged
    assert all(part in line for part in ("api.test: ", "203.0.113.0/24", "192.0.2.0/24, 198.51.100.0/24"))


@pytest.mark.parametrize(
    ("address", "network"),
    [("192.0.2.200", "192.0.2.0/24"), ("2001:db8:1:2::3", "2001:db8:1::/48"), ("fe80::1%eth0", "fe80::/48")],
)
def test_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_disabled_watch_logs_nothing() -> None:
    recorded = RecordedWatch(is_enabled=False)
    recorded.connect({"u0": USUAL}, 10)
    recorded.connect({"u0": DETOUR}, 10)
    recorded.watch.resolved("api.test", ("192.0.2.1",), 0.0)
    recorded.watch.resolved("api.test", ("198.51.100.1",), 0.0)
    assert recorded.logged == []


# --- connections of its own


def test_unused_endpoint_is_connected_every_interval() -> None:
    """One connection per interval to endpoints without other connections, closed at once."""
    with Wireless(2, route_watch=(("interval", 10.0),)) as wireless:
        for _ in range(120):
            wireless.advance(0.25)
        assert len(wireless.workers) == 6
        assert all(peer.ending == "end" and not peer.received for peer in wireless.workers)
        pools = wireless.cluster.pools
        assert pools.routes.watch.connects == 6
        assert pools.open_connections == 0
        for pool in pools.by_id.values():
            pool.route.connected_at = wireless.loop.now()
        for _ in range(39):
            wireless.advance(0.25)
        assert len(wireless.workers) == 6


def test_endpoint_in_maintenance_is_not_connected() -> None:
    """Not even after a change of its address, until it is ready again."""
    with Wireless(2, route_watch=(("interval", 10.0),)) as wireless:
        registry, pools = wireless.control_plane.registry, wireless.cluster.pools

        def pass_time() -> list[str]:
            before = len(wireless.workers)
            for _ in range(48):
                wireless.advance(0.25)
            return [peer.address for peer in wireless.workers[before:]]

        registry.change("w0", state=AdminState.MAINTENANCE)
        assert len(pass_time()) == 2
        moved, other = (pool.endpoint for pool in pools.by_id.values())
        pools.replace([replace(moved, address="http://192.0.2.77:80"), other])
        assert "192.0.2.77" not in pass_time()
        registry.change("w0", state=AdminState.READY)
        assert "192.0.2.77" in pass_time()


def test_watch_connections_keep_within_the_limit() -> None:
    """They count as connections: none is opened at the limit, and no other connection is closed for them."""
    with Wireless(3, route_watch=(("interval", 10.0),)) as wireless:
        pools = wireless.cluster.pools
        pools.limit = 2
        wireless.worker_script = lambda peer: peer.send(response())
        client = wireless.client()
        client.send(get())
        wireless.turn()
        wireless.dialling = "hang"
        wireless.advance(0.25)
        assert (pools.open_connections, pools.routes.watch.under_way, pools.room) == (1, 1, 0)
        wireless.advance(1.0)
        assert (pools.open_connections, pools.routes.watch.under_way) == (1, 1)
        client.send(get())
        wireless.turn()
        assert len(wireless.workers) == 1, "the idle connection was closed for a watch connection"
        wireless.advance(2.0)
        assert pools.routes.watch.connects == 2, "the next endpoint was not connected"
        wireless.leave()


def test_refused_connection_is_no_event() -> None:
    """Refused connections are left to active checks and outlier detection."""
    with Wireless(1, route_watch=(("interval", 10.0),)) as wireless:
        wireless.dialling = "refuse"
        for _ in range(80):
            wireless.advance(0.25)
        watch = wireless.cluster.pools.routes.watch
        assert (watch.connects, watch.failed, len(watch.events)) == (2, 2, 0)


def test_no_connections_by_default() -> None:
    with Wireless(1) as wireless:
        for _ in range(80):
            wireless.advance(0.25)
        assert wireless.workers == []


# --- with the whole balancer


async def test_departure_in_status_metrics_and_log(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    await stage.serve(await stage.worker(response()))
    routes, route = stage.cluster.pools.routes, stage.pool().route
    for trip in [USUAL] * 10 + [DETOUR] * 5:
        stage.clock.at += 10.0
        routes.watch.opened(route, DialTimes(0.0, trip, trip), stage.clock.at)
    stage.clock.at += 5.0
    document = await status(stage)
    (event,) = document["events"]
    assert (event["what"], event["who"], event["age"]) == ("connect_departed", "w0", 5.0)
    assert capsys.readouterr().err == f"balancer: watch: w0: {event['text']}\n"
    assert document["endpoints"][0]["route"]["connect"] == {"usual": USUAL, "last": DETOUR, "departed": True}
    assert document["route_watch"]["regions"] == [{"name": "r", "connect": USUAL, "departed": False}]
    text = await metrics(stage)
    assert 'steelyard_route_departed{endpoint="w0",region="r"} 1.0' in text
    assert 'steelyard_route_events_total{what="connect_departed"} 1.0' in text
    assert 'steelyard_route_last_seconds{endpoint="w0",phase="connect",region="r"} 0.72' in text


async def test_reload_keeps_baselines(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    route = stage.pool().route
    await stage.reload(route_watch={"factor": 3.0})
    assert stage.pool().route is route
    assert stage.cluster.pools.routes.watch.config.factor == 3.0
