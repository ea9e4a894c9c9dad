"""A request of HTTP/2 of some 20 bytes that refers to long fields costs at most four times a short one, whatever is
configured; clients with large cookies and tokens are served."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from balancer.clients.turns import Turns
from balancer.config.schema.limits import Limits
from balancer.downstream.http2.request_heads import StreamRequestHeads
from balancer.errors import RequestRejected
from balancer.http.h1.client import Client
from balancer.syntax.urls import MAX_PARTS
from tests.support.expressions import IS_COMPILED
from tests.support.frames import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, block, frame, frames_of
from tests.support.wireless import CLIENTS, Peer, Wireless

Field = tuple[bytes, bytes]

SIZE = 3_950
"""Bytes of a value: with its name, as long as the table of HPACK takes."""

TRUSTED: dict[str, Any] = {"trusted_proxies": frozenset((CLIENTS, "10.0.0.0/8"))}
SECRET = "secret of thirty-two characters!"


def limit(by: str, **more: str) -> tuple[dict[str, Any], ...]:
    return ({"name": "one", "requests": 1_000_000_000, "by": by, "everywhere": True, **more},)


def routes(condition: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Fifty routes, and one for all else."""
    conditions = (*map(condition, range(50)), {"prefix": "/"})
    return {"routes": tuple({"cluster": "default", **one} for one in conditions)}


FEATURES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "key.by header": {"key": {"by": "header", "name": "X-User"}},
    "key.by cookie": {"key": {"by": "cookie", "name": "sid"}},
    "key.by path": {"key": {"by": "path"}},
    "key.by client": {"key": {"by": "client"}, **TRUSTED},
    "sticky.header": {"sticky": {"header": "X-User"}},
    "sticky.cookie": {"sticky": {"cookie": "sid", "key": SECRET}},
    "trusted proxy": {**TRUSTED, "headers": {"forwarded": True}},
    "internal fields": {"headers": {"internal": ("x-shard", "x-int-*")}},
    "hints": {
        "queue": {"timeout_header": "X-Timeout"},
        "admission": {"header": "X-Priority", "trust": "all"},
    },
    "tracing": {"tracing": {"enabled": True, "trust": "all"}},
    "explain": {"explain": {"header": "X-Explain"}},
    "mirror": {"mirror": {}},
    "routes by path": routes(lambda n: {"prefix": f"/a/{n}", "strip_prefix": True}),
    "routes by host": routes(lambda n: {"host": f"*.h{n}.org"}),
    "routes by field": routes(lambda n: {"prefix": "/", "headers": {"x-user": f"u{n}"}}),
    "routes by parameter": routes(lambda n: {"prefix": "/", "query": {"u": f"u{n}"}}),
    "routes by client": {**routes(lambda n: {"prefix": "/", "clients": (f"192.0.{n}.0/24",)}), **TRUSTED},
    "set fields": {
        "headers": {"request": {"set": {"X-User": "{client} {host}"}, "remove": ("X-Timeout", "cookie")}},
        **TRUSTED,
    },
    "rate limit by client": {"rate_limits": limit("client"), **TRUSTED},
    "rate limit by field": {"rate_limits": limit("header", header="X-User")},
    "rate limit by key": {"rate_limits": limit("key"), "key": {"by": "cookie", "name": "sid"}},
}
"""What may be configured that reads something of a head."""


def _run(name: bytes, *patterns: bytes) -> Iterator[tuple[str, tuple[Field, ...]]]:
    """Yield heads with a field of `SIZE` bytes, as often as it may be repeated and as often as a head may be long."""
    for pattern in patterns:
        value = (pattern * SIZE)[: SIZE - len(name)]
        value = value if value.strip() == value else b"a" + value[2:] + b"a"
        for times in (2, 8):
            yield f"{times} x {name.decode()}: {pattern.decode()}", ((name, value),) * times


HEADS: dict[str, tuple[Field, ...]] = {
    **dict(_run(b"cookie", b"a", b"a=b; ", b"sid=; ", b"; sid", b"sid=0; ")),
    **dict(_run(b"x-forwarded-for", b"10.0.0.1,", b",", b" ", b"[::1]:80, ", b"a")),
    **dict(_run(b"x-user", b"a", b" ", b"a,")),
    **dict(_run(b"x-timeout", b"1")),
    **dict(_run(b"x-request-id", b"a")),
    **dict(_run(b"traceparent", b"a")),
    **dict(_run(b"tracestate", b"a=b,", b",")),
    **dict(_run(b"forwarded", b"for=a,")),
    **dict(_run(b"accept-encoding", b"gzip,")),
}
PATHS: dict[str, tuple[Field, ...]] = {
    pattern.decode(): ((b":path", b"/" + (pattern * SIZE)[: SIZE - 3] + b"a"),)
    for pattern in (
        b"a/",
        b"%61",
        b"%2f",
        b"%e4",
        b"%e4a",
        b"/",
        b"a//",
        b"../",
        b"%2e%2e/",
        b"a?",
        b"x?%61&",
    )
}
PATHS["many parts"] = ((b":path", b"/" + b"%61" * MAX_PARTS + b"/.." * MAX_PARTS + b"/a" * 500),)
ALL = HEADS | {f":path {name}": of for name, of in PATHS.items()}


def frozen(value: Any) -> Any:
    """Tables as a stage takes them."""
    if isinstance(value, dict):
        return tuple((name, frozen(inner)) for name, inner in value.items())
    return tuple(map(frozen, value)) if isinstance(value, tuple) else value


class Attacker:
    """A client of a stage that sends heads whose fields its connection knows already."""

    def __init__(self, stage: Wireless, fields: Sequence[Field]) -> None:
        self._stage = stage
        self._stream = 1
        self.client = stage.client()
        self.client.send(PREFACE + frame(SETTINGS))
        known = [(b":authority", b"h.h0.org"), *dict.fromkeys(fields)]
        self._begin = b"\x82\x86" if b":path" in dict(fields) else b"\x82\x86\x84"
        self._ask(b"".join(block(field, first=0x40) for field in known))
        index = {field: bytes((0x80 | 61 + len(known) - at,)) for at, field in enumerate(known)}
        self._refers = b"".join(index[field] for field in (known[0], *fields))

    def ask(self) -> None:
        """Send a request that differs in one byte from the one before."""
        self._ask(self._refers + block((b"x", b"%d" % (self._stream % 10))))

    def _ask(self, fields: bytes) -> None:
        self.client.send(frame(HEADERS, self._begin + fields, self._stream, END_HEADERS | END_STREAM))
        self._stage.turn()
        self._stream += 2


def answer(worker: Peer) -> None:
    """Answer every request of a read."""
    number = worker.received.count(b"\r\n\r\n")
    worker.received.clear()
    worker.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * number)


class Played(NamedTuple):
    """A feature, a head, and the statuses of the requests with it; those of the short one are named ""."""

    feature: str
    head: str
    statuses: frozenset[bytes]


def play(
    feature: str, heads: Sequence[str], mark: Callable[[], object], requests: int = 2
) -> Iterator[Played]:
    """Send a short request and those with `heads`, `requests` times each, between two calls of `mark`."""
    options = {name: frozen(value) for name, value in FEATURES[feature].items()}
    with Wireless(policy="maglev", **options) as stage:
        stage.cluster.process.turns = Turns(at_once=1 << 30)
        stage.worker_script = stage.mirror_script = answer
        for name in ("", *heads):
            attacker = Attacker(stage, ALL[name] if name else ())
            for _ in range(1 if name else 8):
                attacker.ask()
            attacker.client.received.clear()
            mark()
            for _ in range(requests):
                attacker.ask()
            mark()
            received = frames_of(attacker.client.received)
            found = [payload[:1] for kind, _, _, payload in received if kind == HEADERS]
            assert len(found) == requests, (feature, name, len(found))
            attacker.client.vanish()
            stage.turn()
            yield Played(feature, name, frozenset(found))
        stage.leave()


MOST = 4.0
AMBIGUOUS = {
    "routes by path": [f":path {name}" for name in ("%61", "%2f", "%e4a", "../", "%2e%2e/")],
    "routes by parameter": [":path x?%61&"],
}
OK = b"\x88"
"""The status 200 as an indexed field."""

pytestmark = pytest.mark.no_cover


class Calls:
    """Number of calls of Python and C functions so far."""

    def __init__(self) -> None:
        self.number = 0
        self.marks: list[int] = []

    def __call__(self, frame: object, event: str, argument: object) -> None:
        self.number += event in ("call", "c_call")

    def mark(self) -> None:
        self.marks.append(self.number)


def too_costly(played: list[Played], costs: list[int]) -> list[str]:
    """The heads that cost more than `MOST` short ones; the first is a short one."""
    assert len(costs) == len(played) > 1
    assert costs[0] > 0
    return [
        f"{one.feature}, {one.head}: {cost / costs[0]:.1f}"
        for one, cost in zip(played, costs, strict=True)
        if cost > MOST * costs[0]
    ]


@pytest.mark.skipif(IS_COMPILED, reason="calls of compiled code are not counted")
@pytest.mark.parametrize("feature", FEATURES)
def test_calls_of_a_head_that_refers_to_long_fields(feature: str) -> None:
    """No function is called for each byte, code, cookie or address of a head; what is repeated too often is refused."""
    calls = Calls()
    before = sys.getprofile()
    sys.setprofile(calls)
    try:
        played = list(play(feature, list(ALL), calls.mark))
    finally:
        sys.setprofile(before)
    costs = [after - start for start, after in zip(calls.marks[::2], calls.marks[1::2], strict=True)]
    assert too_costly(played, costs) == []
    refused = [one.head for one in played if one.statuses != {OK}]
    ambiguous = AMBIGUOUS.get(feature, [])
    assert refused == [*(head for head in HEADS if head.startswith("8 x")), *ambiguous]


# --- what clients send


def read(*others: tuple[bytes, bytes]) -> None:
    heads = StreamRequestHeads(Client(b"192.0.2.7", b"127.0.0.1:80"), Limits(), lambda: b"id")
    asked = ((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/"))
    for _ in range(100):
        heads.read((*asked, *others), True)


TOKEN = b"t" * 3_000


@pytest.mark.parametrize(
    "others",
    [
        [(b"cookie", b"c" * 8_192)],
        [(b"cookie", b"c%03d=%b" % (at, b"x" * 100)) for at in range(180)],
        [(b"cookie", b"c%03d=%b" % (at, b"x" * 1000)) for at in range(16)],
        [(b"authorization", b"Bearer " + b"t" * 16_384), (b"cookie", b"sid=1")],
        [(b"cookie", b"jwt=" + TOKEN), (b"cookie", b"jwt=" + TOKEN), (b"authorization", TOKEN)],
        [(b"x-tag", b"same")] * 90,
    ],
    ids=["cookie", "crumbs", "long crumbs", "token", "token of two paths", "short field"],
)
def test_large_heads_of_clients(others: list[tuple[bytes, bytes]]) -> None:
    read(*others)


@pytest.mark.parametrize(
    "others",
    [[(b"cookie", b"c" * 4_000)] * 3, [(b"x" * 4_000, b"%d" % at) for at in range(3)]],
    ids=["field", "name"],
)
def test_head_of_the_same_long_field(others: list[tuple[bytes, bytes]]) -> None:
    """Whether it refers to a field or only to its name."""
    with pytest.raises(RequestRejected) as caught:
        read(*others)
    assert (caught.value.status, caught.value.reason) == (431, "head_too_large")
