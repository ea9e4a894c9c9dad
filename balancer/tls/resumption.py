"""TLS session resumption: keeps a worker's last session and offers it again (RFC 8446 § 2.2; RFC 5077 for TLS 1.2).

A session is bound to the context and server name under which it was verified and is dropped when either changes,
because a resumed handshake shows no certificate. A worker that refuses it does a full handshake. TLS 1.3 sends tickets
after the handshake, so the session is fetched when the next connection needs it, which costs the read path nothing.
"""

from __future__ import annotations

import ssl

from balancer.tls.contexts import ClientTls


class Resumption:
    """TLS session of one worker, with counts and total seconds of full and of resumed handshakes."""

    def __init__(self) -> None:
        self.full = 0
        self.resumed = 0
        self.full_seconds = 0.0
        self.resumed_seconds = 0.0
        self.version: str | None = None
        self._last: ssl.SSLObject | None = None  # may still receive a ticket
        self._session: ssl.SSLSession | None = None
        self._tls: ClientTls | None = None

    def offer(self, tls: ClientTls) -> ssl.SSLSession | None:
        """Session to offer on a new connection with these TLS settings, None if there is none."""
        if self._tls != tls:
            self.forget()
        session = None if self._last is None else self._last.session
        # By TLS 1.2 it may be resumed without a ticket.
        if session is not None and (session.has_ticket or (self.version == "TLSv1.2" and session.id)):
            self._session = session
            self._last = None
        return self._session

    def shaken(self, connection: ssl.SSLObject, tls: ClientTls, seconds: float) -> None:
        """Record a completed handshake of `seconds`; its session, once available, replaces the previous one."""
        self.version = connection.version()
        self._last, self._tls = connection, tls
        if connection.session_reused:
            self.resumed += 1
            self.resumed_seconds += seconds
        else:
            self.full += 1
            self.full_seconds += seconds

    def forget(self) -> None:
        """Drop the session, after a failed handshake or a change of TLS settings."""
        self._last = self._session = self._tls = None
