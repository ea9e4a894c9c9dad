"""Routes watched: a detour, a region's, a name that leads elsewhere; and the connections that it needs to look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.upstream.connect_phases import Phases
from balancer.upstream.route_watch import MOST_EVENTS, RouteBaselines, RouteWatch, WatchPlan, network_of
from policies.facts import AdminState, Endpoint
from tests.balancer.conftest import ManualClock, Stage, get, response
from tests.balancer.test_admin import local, status
from tests.balancer.wireless import Peer, Wireless

USUAL, DETOUR = 0.09, 0.72


class Watching:
    """Three endpoints, two of them in one region, and a watch that writes down what it says."""

    def __init__(self, is_enabled: bool = True) -> None:
        self.clock = ManualClock()
        self.said: list[str] = []
        self.watch = RouteWatch(WatchPlan(is_enabled), self.clock.now, self.said.append)
        regions = {"e0": "emea", "e1": "emea", "u0": "us"}
        self.by_id = {
            id_: RouteBaselines(Endpoint(id_, "http://x", region)) for id_, region in regions.items()
        }
        self.watch.update(self.by_id.values())

    def connect(self, trips: dict[str, float], times: int, tls: float = 0.0) -> None:
        """One connection to each of these every ten seconds."""
        for _ in range(times):
            self.clock.at += 10.0
            for id_, trip in trips.items():
                self.watch.opened(self.by_id[id_], Phases(0.0, trip, trip + tls), self.clock.at)

    @property
    def whats(self) -> list[tuple[str, str]]:
        return [(event.what, event.who) for event in self.watch.events]


def test_a_detour_to_one_endpoint() -> None:
    """Said once, with both figures, within a minute; and once more when it is over."""
    watching = Watching()
    watching.connect({"e0": USUAL, "e1": USUAL}, 10)
    watching.connect({"e0": DETOUR, "e1": USUAL}, 4)
    assert watching.said == []
    watching.connect({"e0": DETOUR, "e1": USUAL}, 1)
    assert watching.said == ["watch: e0: connecting takes 720 ms now, and took 90 ms"]
    assert watching.by_id["e0"].is_departed
    watching.connect({"e0": DETOUR, "e1": USUAL}, 20)
    watching.connect({"e0": USUAL, "e1": USUAL}, 7)
    assert watching.whats == [("connect_departed", "e0"), ("connect_returned", "e0")]
    assert watching.watch.counts == {"connect_departed": 1, "connect_returned": 1}


def test_a_detour_to_a_region() -> None:
    """When all of its endpoints have departed; back with the last of them."""
    watching = Watching()
    watching.connect(dict.fromkeys(watching.by_id, USUAL), 10)
    watching.connect({"e0": DETOUR, "e1": DETOUR, "u0": USUAL}, 10)
    assert watching.whats == [
        ("connect_departed", "e0"),
        ("connect_departed", "e1"),
        ("region_departed", "emea"),
    ]
    assert watching.watch.regions_departed == {"emea"}
    watching.connect(dict.fromkeys(watching.by_id, USUAL), 10)
    assert watching.whats[-1] == ("region_returned", "emea")
    assert watching.watch.regions_departed == set()


def test_who_leaves_may_have_been_the_detour() -> None:
    """A region that has lost those who were away is as it was."""
    watching = Watching()
    watching.connect(dict.fromkeys(watching.by_id, USUAL), 10)
    watching.connect({"e0": DETOUR, "e1": DETOUR}, 10)
    watching.watch.update([watching.by_id["u0"]])
    assert watching.whats[-1] == ("region_returned", "emea")
    assert watching.watch.regions_departed == set()


def test_a_region_of_one_is_its_endpoint() -> None:
    """It is not said twice."""
    watching = Watching()
    watching.connect({"u0": USUAL}, 10)
    watching.connect({"u0": DETOUR}, 10)
    assert watching.whats == [("connect_departed", "u0")]


def test_tls_has_a_norm_of_its_own() -> None:
    """The trip may be as it was while a worker takes longer over its handshakes."""
    watching = Watching()
    watching.connect({"u0": USUAL}, 10, tls=0.1)
    watching.connect({"u0": USUAL}, 10, tls=0.9)
    assert watching.said == ["watch: u0: its TLS handshake takes 900 ms now, and took 100 ms"]


def test_events_are_bounded() -> None:
    """The last ones are kept, and all are counted."""
    watching = Watching()
    for number in range(MOST_EVENTS + 20):
        watching.watch.resolved("api.test", (f"10.{number}.0.1",), 0.0)
    assert len(watching.watch.events) == MOST_EVENTS
    assert watching.watch.counts["network"] == MOST_EVENTS + 19
    assert watching.watch.events[-1].number == MOST_EVENTS + 19


def test_a_name_that_leads_elsewhere() -> None:
    """To no network where it led before; what it has led to since is known."""
    watching = Watching()
    for addresses in (("192.0.2.1",), ("192.0.2.77",), ("198.51.100.1", "192.0.2.1"), ("198.51.100.9",)):
        watching.watch.resolved("api.test", addresses, 0.0)
    assert watching.said == []
    watching.watch.resolved("api.test", ("203.0.113.5",), 0.0)
    watching.watch.resolved("api.test", ("192.0.2.5",), 0.0)
    assert watching.said == [
        "watch: api.test: it leads to 203.0.113.0/24 now, and led to 192.0.2.0/24, 198.51.100.0/24"
    ]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.200", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
    ],
)
def test_networks(address: str, network: str) -> None:
    """/24, and /48."""
    assert network_of(address) == network


def test_a_watch_that_is_off() -> None:
    """It says nothing, whatever happens."""
    watching = Watching(is_enabled=False)
    watching.connect({"u0": USUAL}, 10)
    watching.connect({"u0": DETOUR}, 10)
    watching.watch.resolved("api.test", ("192.0.2.1",), 0.0)
    watching.watch.resolved("api.test", ("198.51.100.1",), 0.0)
    assert watching.said == []


# --- connections of its own


def test_who_is_not_asked_is_called_upon() -> None:
    """One connection in every period, closed at once; who has been connected to meanwhile is left alone."""
    with Wireless(2, route_watch=(("interval", 10.0),)) as wireless:
        for _ in range(120):
            wireless.advance(0.25)
        assert len(wireless.workers) == 6
        assert all(peer.ending == "end" and not peer.received for peer in wireless.workers)
        pools = wireless.proxy.pools
        assert pools.routes.watch.connects == 6
        assert pools.open_connections == 0
        for pool in pools.by_id.values():
            pool.route.watched.connected_at = wireless.loop.now()
        for _ in range(39):
            wireless.advance(0.25)
        assert len(wireless.workers) == 6


def address_of(peer: Peer) -> str:
    assert peer.wire is not None
    address: str = peer.wire.get_extra_info("peername")[0]
    return address


def test_who_is_down_is_left_alone() -> None:
    """The operator has said so: nobody connects, even where it has got another address, until it is up again."""
    with Wireless(2, route_watch=(("interval", 10.0),)) as wireless:
        registry, pools = wireless.control_plane.registry, wireless.proxy.pools

        def pass_time() -> list[str]:
            before = len(wireless.workers)
            for _ in range(48):
                wireless.advance(0.25)
            return [address_of(peer) for peer in wireless.workers[before:]]

        registry.change("w0", state=AdminState.MAINTENANCE)
        assert len(pass_time()) == 2
        moved, other = (pool.endpoint for pool in pools.by_id.values())
        pools.replace([replace(moved, address="http://192.0.2.77:80"), other])
        assert "192.0.2.77" not in pass_time()
        registry.change("w0", state=AdminState.READY)
        assert "192.0.2.77" in pass_time()


def test_visits_keep_within_the_limit() -> None:
    """They count as connections: where there is no room there is none, and none is closed for them."""
    with Wireless(3, route_watch=(("interval", 10.0),)) as wireless:
        pools = wireless.proxy.pools
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
        assert len(wireless.workers) == 1, "the idle one has not made way for a visit"
        wireless.advance(2.0)
        assert pools.routes.watch.connects == 2, "the next one has its turn"
        wireless.leave()


def test_a_worker_that_is_away_is_no_event() -> None:
    """That is for checks and ejection; it is counted."""
    with Wireless(1, route_watch=(("interval", 10.0),)) as wireless:
        wireless.dialling = "refuse"
        for _ in range(80):
            wireless.advance(0.25)
        watch = wireless.proxy.pools.routes.watch
        assert (watch.connects, watch.failed, len(watch.events)) == (2, 2, 0)


def test_by_default_it_opens_none() -> None:
    """Connections are the workers' to pay."""
    with Wireless(1) as wireless:
        for _ in range(80):
            wireless.advance(0.25)
        assert wireless.workers == []


# --- the whole unit


async def test_what_is_told(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """In status, metrics and one line on standard error."""
    await stage.serve(await stage.worker(response()))
    routes, watched = stage.proxy.pools.routes, stage.pool().route.watched
    for trip in [USUAL] * 10 + [DETOUR] * 5:
        stage.clock.at += 10.0
        routes.watch.opened(watched, Phases(0.0, trip, trip), stage.clock.at)
    stage.clock.at += 5.0
    told = await status(stage)
    (event,) = told["events"]
    assert (event["what"], event["who"], event["age"]) == ("connect_departed", "w0", 5.0)
    assert capsys.readouterr().err == f"balancer: watch: w0: {event['text']}\n"
    assert told["endpoints"][0]["route"]["connect"] == {"usual": USUAL, "last": DETOUR, "departed": True}
    assert told["route_watch"]["regions"] == [{"name": "r", "connect": USUAL, "departed": False}]
    metrics = (await stage.ask(local(b"/-/metrics"))).body.decode()
    assert 'steelyard_route_departed{endpoint="w0",region="r"} 1.0' in metrics
    assert 'steelyard_route_events_total{what="connect_departed"} 1.0' in metrics
    assert 'steelyard_route_last_seconds{endpoint="w0",phase="connect",region="r"} 0.72' in metrics


async def test_a_reload_keeps_what_is_known(stage: Stage) -> None:
    """Norms and names are the routes', and routes stay with their endpoints."""
    await stage.serve(await stage.worker(response()))
    route = stage.pool().route
    await stage.reload(route_watch={"factor": 3.0})
    assert stage.pool().route is route
    assert stage.proxy.pools.routes.watch.plan.rules.factor == 3.0
