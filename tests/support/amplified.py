"""HTTP/2 requests that refer to long fields sent before (RFC 7541), for each feature that reads a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from balancer.clients.turns import Turns
from balancer.syntax.urls import MAX_PARTS
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
