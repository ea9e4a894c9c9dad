"""Findings about a probed server as plain values, as a JSON document, and as a recommended configuration. Pure.

Durations are in seconds; None is an unknown value. In the configuration a value that differs from a default has its
reason as a comment. It must be accepted by the loader.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any

from balancer.config.effective import quoted
from balancer.tools.probe.connection import IdleLimit
from balancer.tools.probe.target import ProbeTarget


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one request, with curl's names and meaning (curl(1), --write-out).

    Each is measured from the beginning, so a later one includes the earlier. On a reused connection the first four are
    0.
    """

    namelookup: float
    connect: float
    appconnect: float
    pretransfer: float
    starttransfer: float
    total: float


@dataclass(frozen=True, slots=True)
class TlsFindings:
    """TLS findings; `resumes` is True if a second connection resumed the session, `expires` is as in the
    certificate.
    """

    version: str
    cipher: str
    expires: str | None
    resumes: bool | None


@dataclass(frozen=True, slots=True)
class Http2Findings:
    """HTTP/2 support and the limit of concurrent streams; `problem` says why it is not supported.

    Over plain http it was tried with prior knowledge.
    """

    is_spoken: bool
    streams: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KeepAliveFindings:
    """Keep-alive findings.

    `is_kept`: a second request was answered on the connection. `hint` is the content of the field `Keep-Alive`.
    `requests` were answered on one connection; `is_bounded`: then the server closed it.
    """

    is_kept: bool
    hint: dict[str, int]
    requests: int
    is_bounded: bool
    idle: IdleLimit | None = None


@dataclass(frozen=True, slots=True)
class ProbePhases:
    """Times of the first request, of the first request on a second connection (name cached, TLS session to be resumed),
    and of the median request on a reused connection.
    """

    cold: Timing
    again: Timing | None
    warm: Timing | None


@dataclass(slots=True)
class Findings:
    """All findings about a server.

    `status` and `version` are of the first response, None without HTTP/1.1; `takes_head`: HEAD is answered like GET;
    `connections` and `requests` count those of the probe.
    """

    target: ProbeTarget
    address: str | None = None
    status: int | None = None
    version: str | None = None
    server: str | None = None
    cookies: tuple[str, ...] = ()
    http2: Http2Findings | None = None
    tls: TlsFindings | None = None
    keep_alive: KeepAliveFindings | None = None
    phases: ProbePhases | None = None
    takes_head: bool | None = None
    connections: int = 0
    requests: int = 0

    def document(self) -> dict[str, Any]:
        """Return the findings as a JSON document."""
        idle = self.keep_alive.idle if self.keep_alive is not None else None
        document: dict[str, Any] = {
            "url": self.target.url,
            "address": self.address,
            "status": self.status,
            "http": {"1": self.version, "2": asdict(self.http2) if self.http2 else None},
            "server": self.server,
            "tls": asdict(self.tls) if self.tls else None,
            "keep_alive": asdict(self.keep_alive) if self.keep_alive else None,
            "cookies": list(self.cookies),
            "takes_head": self.takes_head,
            "phases": asdict(self.phases) if self.phases else None,
            "cost": {"connections": self.connections, "requests": self.requests},
        }
        if idle is not None:
            document["keep_alive"]["idle"] |= {"is_random": idle.is_random, "safe": idle.safe}
        return document


FAR_RTT = 0.005
"""Connect time in seconds from which a saved handshake outweighs the cost of HTTP/2 for the balancer."""

DEAR_CONNECT = 0.02
"""Extra latency of a new connection in seconds from which preconnecting is recommended."""

MARGIN = 0.9
"""Part of the measured idle limit that is used; the rest allows for the network delay."""

SLOW_CONNECT = 0.5
"""Connect time in seconds from which the default timeout of 2 s is tight."""

PRECONNECT = 2
"""Preconnected connections: with little traffic, enough for all but a few requests in a thousand."""

NO_HEARTBEAT = 400
"""Lowest status with which the probed path is not usable for a heartbeat."""

REASONS_AT = 36
"""Column of the comments."""

Row = tuple[str, str, str]
"""Key, value as TOML, and the reason or ""."""


def advice(findings: Findings, ca: Path | None = None) -> str:
    """Return the recommended tables as TOML; `ca` is the file that the certificate was verified with."""
    tables = (_endpoint(findings), _tls(ca), _pool(findings), _timeouts(findings))
    return "\n".join(table for table in tables if table)


def _endpoint(findings: Findings) -> str:
    target, rows = findings.target, list[Row]()
    rows += [("id", quoted(target.name), ""), ("address", quoted(target.origin), "")]
    if target.requested is not None:
        rows.append(("host", quoted(target.requested), "it was asked for this name"))
    if findings.version is None:
        rows.append(("transport", '"http2"', "it speaks nothing else"))
    elif findings.http2 is not None and findings.http2.is_spoken and _is_far(findings):
        rows.append(("transport", '"http2"', "one handshake for many requests"))
    elif findings.keep_alive is not None and not findings.keep_alive.is_kept:
        rows.append(("keep_alive", "false", "it keeps no connection"))
    return _table("[[endpoints]]", rows)


def _tls(ca: Path | None) -> str:
    return "" if ca is None else _table("[endpoints.tls]", [("ca", quoted(str(ca.absolute())), "")])


def _pool(findings: Findings) -> str:
    kept = findings.keep_alive
    if kept is None or not kept.is_kept:
        return ""
    rows = _idle(kept)
    if kept.is_bounded:
        rows.append(("max_requests", str(kept.requests), "after which it ends a connection"))
    gain = _gain(findings)
    if gain >= DEAR_CONNECT:
        rows.append(("preconnect", str(PRECONNECT), f"a new connection costs {gain * 1e3:.0f} ms"))
        rows += _heartbeat(findings, kept)
    return _table("[pool]", rows) if rows else ""


def _idle(kept: KeepAliveFindings) -> list[Row]:
    idle = kept.idle
    if idle is None:
        return []
    if idle.closed is None:
        return [("idle_timeout", _number(idle.waited), "it keeps them for longer than that")]
    how = "forgets them" if idle.is_silent else "closes them"
    when = "at random, the first" if idle.is_random else ""
    return [
        (
            "idle_timeout",
            _number(idle.safe * MARGIN),
            " ".join(f"it {how} {when} after {idle.closed:.1f} s".split()),
        )
    ]


def _heartbeat(findings: Findings, kept: KeepAliveFindings) -> list[Row]:
    """Return the heartbeat keys if connections have an idle limit and the probed path answers without an error."""
    is_short = kept.idle is not None and kept.idle.closed is not None
    if not is_short or findings.status is None or findings.status >= NO_HEARTBEAT:
        return []
    method = "HEAD" if findings.takes_head else "GET"
    return [
        ("heartbeat", quoted(findings.target.path), "better: the cheapest path that there is"),
        ("heartbeat_method", quoted(method), ""),
    ]


def _timeouts(findings: Findings) -> str:
    cold = _cold(findings)
    if cold is None or cold.appconnect < SLOW_CONNECT:
        return ""
    return _table(
        "[timeouts]", [("connect", f"{ceil(cold.appconnect * 4)}.0", f"it took {cold.appconnect:.2f} s")]
    )


def _cold(findings: Findings) -> Timing | None:
    return findings.phases.cold if findings.phases is not None else None


def _is_far(findings: Findings) -> bool:
    cold = _cold(findings)
    return _gain(findings) >= DEAR_CONNECT or (cold is not None and cold.connect - cold.namelookup >= FAR_RTT)


def _gain(findings: Findings) -> float:
    """Return the seconds that a request saves on an existing connection."""
    phases = findings.phases
    if phases is None or phases.warm is None:
        return 0.0
    return (phases.again or phases.cold).total - phases.warm.total


def _table(name: str, rows: list[Row]) -> str:
    lines = (
        f"{f'{key} = {value}':<{REASONS_AT}}# {why}" if why else f"{key} = {value}"
        for key, value, why in rows
    )
    return "\n".join((name, *lines)) + "\n"


def _number(seconds: float) -> str:
    """Format seconds rounded down to 0.1, at least 0.1."""
    return f"{max(0.1, floor(seconds * 10) / 10):.1f}"
