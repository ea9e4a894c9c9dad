"""The last TLS session with one worker, offered to it again (RFC 8446 § 2.2; RFC 5077 for TLS 1.2).

Rule of this file: a session belongs to the context and the name that it was verified under; with any other it is
forgotten, for a resumed handshake shows no certificate. A worker that refuses it makes a full handshake, and nothing is
lost. In TLS 1.3 tickets come behind the handshake, so the session is asked for when the next connection needs it, and
reading pays nothing for it.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls


class Resumption:
    """Handshakes with one worker, and how many seconds they took, by whether they resumed a session."""

    def __init__(self) -> None:
        self.full = 0
        self.resumed = 0
        self.full_seconds = 0.0
        self.resumed_seconds = 0.0
        self.version: str | None = None
        self._last: ssl.SSLObject | None = None  # which may get a ticket yet
        self._session: ssl.SSLSession | None = None
        self._tls: ClientTls | None = None

    def offer(self, tls: ClientTls) -> ssl.SSLSession | None:
        """What a connection that is made like this may begin with."""
        if self._tls != tls:
            self.forget()
        if (
            self._last is not None
            and (session := self._last.session) is not None
            and self._is_of_use(session)
        ):
            self._session = session
            self._last = None
        return self._session

    def shaken(self, connection: ssl.SSLObject, tls: ClientTls, seconds: float) -> None:
        """A handshake has succeeded; what it leaves replaces what was known, as soon as it is there."""
        self.version = connection.version()
        self._last, self._tls = connection, tls
        if connection.session_reused:
            self.resumed += 1
            self.resumed_seconds += seconds
        else:
            self.full += 1
            self.full_seconds += seconds

    def forget(self) -> None:
        """A handshake has failed, or the certificates are others now: begin anew."""
        self._last = self._session = self._tls = None

    def _is_of_use(self, session: ssl.SSLSession) -> bool:
        """TLS 1.2 may resume by an id; 1.3 has nothing to resume by before a ticket has come."""
        return session.has_ticket or (self.version == "TLSv1.2" and bool(session.id))
