"""Calls to third parties: the name server, what is said of stays, and one short sitting with processes."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from balancer.upstream.resolver import LookupFailed, Resolver
from experiments.report.canvas import to_png
from experiments.reproduce.api_calls import Made
from experiments.reproduce.name_server import answer_to, name_server
from experiments.reproduce.provider import (
    BEATS,
    COLD_FAR,
    MODES,
    NEW_A,
    OLD_A,
    QUICK,
    WARM_FAR,
    WITHOUT,
    ConnectionCounts,
    Mode,
    ModeResult,
    RouteChange,
    Setup,
)
from experiments.reproduce.third_party import findings, verdicts
from experiments.reproduce.third_party_figure import third_party_figure
from experiments.reproduce.third_party_runs import connection_counts, file_of, instants
from tests.experiments.reproduced import quick_sitting

NOTICED = RouteChange(8, 20.0, "its TLS handshake takes longer")


def stay(mode: Mode, took: float, opened: int = 0, cold: int = 0, heartbeats: int = 0) -> ModeResult:
    """A hundred calls that took so long each; connections took 0.1 s."""
    made = tuple(Made("call", 0.0, took, 200) for _ in range(100))
    return ModeResult(mode, made, 100.0, 12.5, ConnectionCounts(opened, cold, 0, heartbeats, 0.1 * opened))


GOOD = [
    stay(OLD_A, 0.2, opened=100),
    stay(NEW_A, 0.18, opened=8),
    stay(WITHOUT, 0.5, opened=70, cold=70),
    stay(BEATS, 0.15, heartbeats=250),
    stay(COLD_FAR, 0.5, opened=37, cold=37),
    stay(WARM_FAR, 0.2),
]


async def test_the_name_server_answers_a_resolver() -> None:
    """c-ares understands it: an address with its TTL, and no IPv6."""
    async with AsyncExitStack() as stack:
        server, port = await name_server(0.0, 30, stack)
        resolver = Resolver((f"127.0.0.1:{port}",), 2.0)
        try:
            found = await resolver.addresses("provider.test")
        finally:
            await resolver.close()
    assert (found.hosts, found.ttl) == (("127.0.0.1",), 30)
    assert server.asked == 2


async def test_the_name_server_has_no_services() -> None:
    async with AsyncExitStack() as stack:
        _, port = await name_server(0.0, 30, stack)
        resolver = Resolver((f"127.0.0.1:{port}",), 2.0)
        try:
            with pytest.raises(LookupFailed):
                await resolver.services("provider.test")
        finally:
            await resolver.close()


@pytest.mark.parametrize("datagram", [b"", b"\0" * 11, b"\0" * 12, b"\0" * 12 + b"\3abc"])
def test_what_is_no_question_gets_no_answer(datagram: bytes) -> None:
    assert answer_to(datagram, 1) == b""


def test_an_answer_names_this_machine() -> None:
    query = b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + b"\1a\4test\0" + b"\0\1\0\1"
    reply = answer_to(query, 7)
    assert reply.startswith(b"\x12\x34\x81\x80\0\1\0\1")
    assert reply.endswith(b"\0\0\0\7" + b"\0\4" + socket.inet_aton("127.0.0.1"))


def test_all_bounds_are_met() -> None:
    assert [verdict.is_met for verdict in verdicts(GOOD, NOTICED)] == [True] * 7
    assert verdicts([], None) == []
    assert len(findings(GOOD, NOTICED)) == 3


@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        (stay(NEW_A, 0.18, opened=11), [0]),
        (stay(NEW_A, 0.18, opened=60), [0, 1]),
        (stay(BEATS, 0.2), [2]),
        (stay(BEATS, 0.3), [2, 3]),
        (stay(WARM_FAR, 0.2, cold=1), [4]),
    ],
)
def test_each_bound_can_be_missed(worse: ModeResult, missed: list[int]) -> None:
    stays = [worse if one.mode is worse.mode else one for one in GOOD]
    found = verdicts(stays, NOTICED)
    assert [number for number, verdict in enumerate(found) if not verdict.is_met] == missed


@pytest.mark.parametrize("noticed", [None, 61.0])
def test_a_detour_must_be_noticed_within_a_minute(noticed: float | None) -> None:
    assert verdicts([], replace(NOTICED, noticed=noticed))[0].is_met is False


def test_one_group_gets_the_same_calls_at_the_same_instants() -> None:
    first, again = (list(instants("B", Setup(), Random("1:B"))) for _ in range(2))
    assert first == again == sorted(first)
    assert len(first) == pytest.approx(90 * 125 / 12.5, rel=0.15)
    bursts = list(instants("A", Setup(), Random("1:A")))
    assert 10 <= len(bursts) / len(set(bursts)) <= 30


def test_each_mode_is_a_unit_of_its_own_kind() -> None:
    """Only what a mode says differs within a group."""
    texts = {mode: file_of(mode, ("127.0.0.1", 1), 53, 2).text for mode in MODES}
    assert "forgotten" not in "".join(texts.values())
    assert "stale = 0" in texts[WITHOUT]
    assert "stale" not in texts[BEATS]
    assert 'heartbeat = "/healthz"' in texts[BEATS]
    assert "provider.test" not in texts[WARM_FAR]
    by_unit = {(mode.provider, text) for mode, text in texts.items()}
    assert len(by_unit) == len(MODES)


def test_accounts_are_differences() -> None:
    connections = {"opened": 3, "cold": 2, "died": 0, "heartbeats": 5}
    status = {
        "endpoints": [
            {"connections": connections, "route": {"tls": {"full": 3, "full_mean": 0.1}}},
            {"connections": connections, "route": {"tls": {"full": 0, "full_mean": None}}},
        ]
    }
    found = connection_counts(status)
    assert (found.opened, found.cold, found.died, found.heartbeats) == (6, 4, 0, 10)
    assert found.handshakes == pytest.approx(0.3)
    assert found.since(found) == ConnectionCounts(0, 0, 0, 0, 0.0)


def test_the_figure_is_drawn() -> None:
    assert to_png(third_party_figure(GOOD)).startswith(b"\x89PNG")
    assert to_png(third_party_figure(GOOD[:2])).startswith(b"\x89PNG")


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_a_quick_sitting(tmp_path: Path) -> None:
    """Every mode makes its calls, none fails, HTTP/2 opens fewer connections, and the watch speaks."""
    found = quick_sitting("third-party", tmp_path)
    stays = {(one["group"], one["mode"]): one for one in found["stays"]}
    assert list(stays) == [(mode.group, mode.name) for mode in QUICK.modes]
    assert all(one["calls"] > 0 and one["failed"] == 0 for one in stays.values())
    old, new = (stays[mode.group, mode.name] for mode in (OLD_A, NEW_A))
    assert old["calls"] == new["calls"]
    assert 0 < new["account"]["opened"] < old["account"]["opened"]
    assert stays["B", BEATS.name]["account"]["heartbeats"] > 0
    assert found["detour"]["noticed"] is not None
    assert (tmp_path / "third-party.png").read_bytes().startswith(b"\x89PNG")
