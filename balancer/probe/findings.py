"""What was found out about a server: values, and the document that they make.

Rule of this file: nothing is decided here. Durations are seconds; None is what was not found out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from balancer.probe.idle_limit import IdleLimit
from balancer.probe.target import Target


@dataclass(frozen=True, slots=True)
class Timing:
    """One request by curl's names and meaning (curl(1), --write-out): each is counted from the beginning, so a later
    one holds the earlier. On a connection that stood already the first four are nothing."""

    namelookup: float
    connect: float
    appconnect: float
    pretransfer: float
    starttransfer: float
    total: float


@dataclass(frozen=True, slots=True)
class TlsFindings:
    """`resumes`: a second connection went on with the first one's session. `expires` as the certificate says it."""

    version: str
    cipher: str
    expires: str | None
    resumes: bool | None


@dataclass(frozen=True, slots=True)
class Http2Findings:
    """Whether the server speaks it, and how many requests at once it allows on a connection. `problem` says why not;
    over plain http it was spoken with prior knowledge."""

    is_spoken: bool
    streams: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KeepAliveFindings:
    """`is_kept`: a second request was answered on the connection. `hint` is what the field `Keep-Alive` said.
    `requests` were answered on one connection; `is_bounded`: then the server ended it."""

    is_kept: bool
    hint: dict[str, int]
    requests: int
    is_bounded: bool
    idle: IdleLimit | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """The first request of all; the first on another connection, when the name was known and the session was to be
    resumed; and the median of those that found a connection."""

    cold: Timing
    again: Timing | None
    warm: Timing | None


@dataclass(slots=True)
class Findings:
    """All of it. `status` and `version` are of the first answer, None where HTTP/1.1 is not spoken; `takes_head`: HEAD
    is answered as well as GET; `connections` and `requests` count what it took."""

    target: Target
    address: str | None = None
    status: int | None = None
    version: str | None = None
    server: str | None = None
    cookies: tuple[str, ...] = ()
    http2: Http2Findings | None = None
    tls: TlsFindings | None = None
    keep_alive: KeepAliveFindings | None = None
    phases: Phases | None = None
    takes_head: bool | None = None
    connections: int = 0
    requests: int = 0

    def document(self) -> dict[str, Any]:
        """For machines."""
        idle = self.keep_alive.idle if self.keep_alive is not None else None
        told: dict[str, Any] = {
            "url": f"{self.target.origin}{self.target.path}",
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
            told["keep_alive"]["idle"] |= {"is_random": idle.is_random, "safe": idle.safe}
        return told
