"""Heads with long runs of one byte through the data path: steps of all expressions grow linearly, values are kept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from tests.support.expressions import IS_COMPILED, watch
from tests.support.scripted_transports import (
    TRANSPORTS,
    Play,
    hello,
    over,
    serve_over,
    values,
)
from tests.support.stage import Stage
from tests.support.wire import get
from tests.support.wireless import CLIENTS, Wireless, sends

LONG = 31_000
"""Length of a run; a head may have 32,768 bytes."""

GROWS = (1_000, 2_000)
"""Lengths of the runs whose steps are compared: what is not linear shows there, too."""

TOO_MUCH = 2.5
"""Growth of the steps for twice the run that is more than linear."""

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

pytestmark = pytest.mark.no_cover
watching = pytest.mark.skipif(IS_COMPILED, reason="the expressions of compiled code cannot be watched")

SETTINGS: dict[str, dict[str, Any]] = {
    "no key": {},
    "key.by = header": {"key": (("by", "header"), ("name", "X-User"))},
    "key.by = cookie": {"key": (("by", "cookie"), ("name", "sid"))},
    "key.by = client": {"key": (("by", "client"),), "trusted_proxies": frozenset((CLIENTS,))},
    "sticky.header": {"sticky": (("header", "X-User"),)},
    "sticky.cookie": {"sticky": (("cookie", "sid"), ("key", "secret of thirty-two characters!"))},
    "internal, stated": {
        "headers": (("internal", ("x-shard", "x-int-*")),),
        "queue": (("timeout_header", "X-Timeout"),),
        "admission": (("header", "X-Priority"), ("trust", "all")),
    },
}

ASKED = (
    ("no key", b"Connection:%b"),
    ("no key", b"Connection: keep-alive%b"),
    ("no key", b"X-Request-ID:%b"),
    ("no key", b"TE:%b"),
    ("key.by = header", b"X-User:%b"),
    ("key.by = header", b"X-User:a%bb"),
    ("key.by = cookie", b"Cookie:%b"),
    ("key.by = cookie", b"Cookie: sid=%b"),
    ("key.by = client", b"X-Forwarded-For:%b"),
    ("key.by = client", b"X-Forwarded-For:a%b, 192.0.2.9"),
    ("sticky.header", b"X-User:%b"),
    ("sticky.cookie", b"Cookie: sid=%b"),
    ("internal, stated", b"X-Int-A:%b"),
    ("internal, stated", b"X-Timeout:%b"),
)
RUNS = (b" ", b" \t", b"a,", b"; sid=")


def steps(options: dict[str, Any], lines: bytes) -> int:
    """Steps of the balancer's expressions for a request with these lines."""
    with pytest.MonkeyPatch.context() as patch:
        tally = watch(patch)
        with Wireless(policy="maglev", **options) as stage:
            client = stage.client()
            tally.clear()
            sends(stage, client, b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % lines)
            assert len(stage.workers) == 1, bytes(client.received)
            sends(stage, stage.workers[0], ANSWER)
            assert client.received.startswith(b"HTTP/1.1 200")
            stage.leave()
    return sum(tally)


@watching
@pytest.mark.parametrize(("setting", "field"), ASKED)
def test_request_with_a_long_run(setting: str, field: bytes) -> None:
    """In each field that is read."""
    for run_ in RUNS:
        few, many = (field % (run_ * (size // len(run_))) for size in GROWS)
        assert steps(SETTINGS[setting], many) < TOO_MUCH * steps(SETTINGS[setting], few), run_


@pytest.mark.parametrize(
    ("setting", "field", "key"),
    [
        ("key.by = header", b"X-User:%b", None),
        ("key.by = header", b"X-User:%banna%b", "anna"),
        ("sticky.header", b"X-User:%b", None),
        ("sticky.header", b"X-User:%banna b.%b", "anna b."),
        ("key.by = client", b"X-Forwarded-For:%b", CLIENTS),
        ("key.by = client", b"X-Forwarded-For:%b198.51.100.7%b, 10.0.0.1", "198.51.100.7"),
    ],
)
def test_key_behind_a_long_run(setting: str, field: bytes, key: str | None) -> None:
    """The key has no white space around it; the field reaches the worker unchanged."""
    runs = field.count(b"%b")
    line = field % ((b" \t" * (LONG // 2 // runs),) * runs)
    with Wireless(policy="maglev", **SETTINGS[setting]) as stage:
        keys: list[object] = []
        of = stage.cluster.key_of
        assert of is not None

        def noted(request: Request, client: Client) -> str | None:
            keys.append(of(request, client))
            return of(request, client)

        stage.cluster.key_of = noted
        client = stage.client()
        sends(stage, client, b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % line)
        assert keys == [key]
        if setting != "key.by = client":  # where that field is rewritten
            assert b"\r\n%b\r\n" % line in stage.workers[0].received
        stage.leave()


@watching
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_long_run_over_another_transport(
    stage: Stage, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These transports parse every field; the value arrives without surrounding white space."""
    plays: list[Play] = []
    tally = watch(monkeypatch)
    await serve_over(stage, over(transport, hello, plays), transport)
    taken = []
    for size in GROWS:
        tally.clear()
        field = b"X-Run: a%bb%b" % (b" " * (size // 2), b"\t" * (size // 2))
        assert (await stage.ask(get(b"/", field))).status == 200
        assert values(plays[-1].fields, b"x-run") == [b"a%bb" % (b" " * (size // 2))]
        taken.append(sum(tally))
    assert taken[1] < TOO_MUCH * taken[0]


@watching
@pytest.mark.parametrize("run_", RUNS)
def test_response_with_a_long_run(run_: bytes) -> None:
    """In each field that is read."""
    for field in (b"Connection: keep-alive,%b", b"Keep-Alive: %b", b"X-Worker-In-Flight:%b", b"Upgrade:%b"):
        taken = []
        for size in GROWS:
            with pytest.MonkeyPatch.context() as patch:
                tally = watch(patch)
                with Wireless(policy="reported-load") as stage:
                    client = stage.client()
                    sends(stage, client, get())
                    tally.clear()
                    stage.workers[0].send(
                        ANSWER.replace(
                            b"\r\n\r\n", b"\r\n%b\r\n\r\n" % (field % (run_ * (size // len(run_))))
                        )
                    )
                    stage.turn()
                    assert client.received.startswith(b"HTTP/1.1 200")
                    stage.leave()
            taken.append(sum(tally))
        assert taken[1] < TOO_MUCH * taken[0], field


def test_no_expression_is_compiled_from_peer_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Connection field with thousands of options compiles nothing."""
    options = b"Connection: " + b", ".join(b"x-%d" % number for number in range(3000))
    with Wireless() as stage:
        made: list[object] = []
        client = stage.client()
        compile_ = re.compile

        def noted(pattern: Any, flags: int = 0) -> Any:
            made.append(pattern)
            return compile_(pattern, flags)

        monkeypatch.setattr(re, "compile", noted)
        sends(stage, client, b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\nX-7: gone\r\nX-Y: 1\r\n\r\n" % options)
        assert b"\r\nHost: a\r\nX-Y: 1\r\nX-Forwarded-For: " in stage.workers[0].received
        stage.workers[0].send(
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n%b\r\nX-7: gone\r\nX-Y: 1\r\n\r\n" % options
        )
        stage.turn()
        assert b"\r\nX-Y: 1\r\n" in client.received
        assert b"X-7" not in client.received + stage.workers[0].received
        assert made == []
        stage.leave()
