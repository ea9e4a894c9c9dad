"""Findings about a server as plain values, and as a JSON document.

Durations are in seconds; None is an unknown value. This module makes no decisions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from balancer.tools.probe.idle import IdleLimit
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
