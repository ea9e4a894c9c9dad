"""`reproduce third-party`: the name server, bounds, and a quick run with processes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from balancer.upstream.dial.resolver import LookupFailed, Resolver
from experiments.report.canvas import to_png
from experiments.reproduce.client import Calls, ClientAnswer
from experiments.reproduce.launch import EVENTS, config_text, counts_in
from experiments.reproduce.third_party import ThirdParty
from experiments.reproduce.third_party_runs import (
    HEARTBEATS_B,
    HEARTBEATS_FAR,
    MODES,
    NEW_A,
    OLD_A,
    PLAIN_B,
    PLAIN_FAR,
    Mode,
    ModeResult,
    Results,
    RouteChange,
    ThirdPartyPlan,
    answer_to,
    instants,
    keys_of,
    name_server,
)
from tests.experiments.reproduced import quick_run

REPORTED = RouteChange(8, 20.0, "its TLS handshake takes longer")
NO_COUNTS = dict.fromkeys((*EVENTS, "retried", "handshakes"), 0)


def result(mode: Mode, took: float, opened: int = 0, cold: int = 0, heartbeats: int = 0) -> ModeResult:
    """A hundred calls of equal duration; each connection took 0.1 s to open."""
    counts = {"opened": opened, "cold": cold, "heartbeats": heartbeats, "handshakes": 0.1 * opened}
    return ModeResult(mode, Calls([ClientAnswer(200, took)] * 100, 100.0, NO_COUNTS | counts), 12.5)


GOOD = {
    one.mode: one
    for one in (
        result(OLD_A, 0.2, opened=100),
        result(NEW_A, 0.18, opened=8),
        result(PLAIN_B, 0.5, opened=70, cold=70),
        result(HEARTBEATS_B, 0.15, heartbeats=250),
        result(PLAIN_FAR, 0.5, opened=37, cold=37),
        result(HEARTBEATS_FAR, 0.2),
    )
}


def third_party_of(results: Results, route: RouteChange | None) -> ThirdParty:
    found = ThirdParty(True)
    found._results, found._route_change = results, route
    return found


async def test_the_balancer_s_resolver_accepts_the_name_server() -> None:
    """An address with its TTL, and no services."""
    async with AsyncExitStack() as stack:
        port = await name_server(0.0, 30, stack)
        resolver = Resolver((f"127.0.0.1:{port}",), 2.0)
        try:
            found = await resolver.addresses("provider.test")
            with pytest.raises(LookupFailed):
                await resolver.services("provider.test")
        finally:
            await resolver.close()
    assert (found.hosts, found.ttl) == (("127.0.0.1",), 30)


@pytest.mark.parametrize("datagram", [b"", b"\0" * 11, b"\0" * 12, b"\0" * 12 + b"\3abc"])
def test_a_datagram_without_a_question_gets_no_answer(datagram: bytes) -> None:
    assert answer_to(datagram, 1) == b""


def test_all_bounds_are_met() -> None:
    assert [verdict.is_met for verdict in third_party_of(GOOD, REPORTED).verdicts()] == [True] * 7
    assert [*ThirdParty(True).verdicts()] == []


@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        (result(NEW_A, 0.18, opened=11), [0]),
        (result(NEW_A, 0.18, opened=60), [0, 1]),
        (result(HEARTBEATS_B, 0.2), [2]),
        (result(HEARTBEATS_B, 0.3), [2, 3]),
        (result(HEARTBEATS_FAR, 0.2, cold=1), [4]),
    ],
)
def test_each_bound_can_be_missed(worse: ModeResult, missed: list[int]) -> None:
    found = third_party_of(GOOD | {worse.mode: worse}, REPORTED).verdicts()
    assert [number for number, verdict in enumerate(found) if not verdict.is_met] == missed


@pytest.mark.parametrize("after", [None, 61.0])
def test_a_longer_route_must_be_reported_within_a_minute(after: float | None) -> None:
    (verdict,) = third_party_of({}, replace(REPORTED, reported_after=after)).verdicts()
    assert verdict.is_met is False


def test_modes_of_a_group_get_the_same_calls_at_the_same_instants() -> None:
    first, second = (list(instants("B", ThirdPartyPlan(), Random("1:B"))) for _ in range(2))
    assert first == second == sorted(first)
    assert len(first) == pytest.approx(90 * 125 / 12.5, rel=0.15)
    bursts = list(instants("A", ThirdPartyPlan(), Random("1:A")))
    assert 10 <= len(bursts) / len(set(bursts)) <= 30


def test_each_mode_has_its_own_configuration() -> None:
    texts = {mode: config_text(keys_of(mode, ("127.0.0.1", 1), 53, 2)) for mode in MODES}
    assert '"max_stale" = 0' in texts[PLAIN_B]
    assert "stale" not in texts[HEARTBEATS_B]
    assert '"heartbeat" = "/healthz"' in texts[HEARTBEATS_B]
    assert "provider.test" not in texts[HEARTBEATS_FAR]
    assert len({(mode.provider, text) for mode, text in texts.items()}) == len(MODES)


def test_modes_with_preconnects_are_waited_for() -> None:
    assert [mode.preconnect for mode in MODES] == [0, 0, 0, 0, 2, 1, 0, 2]


def test_connection_counts_are_summed_over_endpoints() -> None:
    connections = {"opened": 3, "reused": 1, "cold": 2, "lost_idle": 0, "died": 0, "heartbeats": 5}
    status = {
        "retried": 1,
        "endpoints": [
            {"connections": connections, "route": {"tls": {"full": 3, "full_mean": 0.1}}},
            {"connections": connections, "route": {"tls": {"full": 0, "full_mean": None}}},
        ],
    }
    found = counts_in(status)
    assert {name: found[name] for name in ("opened", "cold", "died", "heartbeats", "retried")} == {
        **{"opened": 6, "cold": 4, "died": 0, "heartbeats": 10, "retried": 1},
    }
    assert found["handshakes"] == pytest.approx(0.3)


def test_the_figure_is_drawn_and_the_findings_stated() -> None:
    for modes in (MODES[:2], MODES):
        found = third_party_of({mode: GOOD[mode] for mode in modes if mode in GOOD}, REPORTED)
        assert to_png(found.figure()).startswith(b"\x89PNG")
    assert len([*found.findings()]) == 1 + 3


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_quick_run(tmp_path: Path) -> None:
    """No call of any mode fails, HTTP/2 opens fewer connections, and the longer route is reported."""
    found = quick_run("third-party", tmp_path)
    modes = {(one["group"], one["mode"]): one for one in found["modes"]}
    assert list(modes) == [(mode.group, mode.name) for mode in MODES]
    assert all(one["calls"] > 0 and one["failed"] == 0 for one in modes.values())
    old, new = (modes[mode.group, mode.name] for mode in (OLD_A, NEW_A))
    assert old["calls"] == new["calls"]
    assert 0 < new["connections"]["opened"] < old["connections"]["opened"]
    assert modes["B", HEARTBEATS_B.name]["connections"]["heartbeats"] > 0
    assert found["route_change"]["reported_after"] is not None
