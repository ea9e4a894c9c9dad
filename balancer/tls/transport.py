"""TLS transport: an `asyncio.Transport` that encrypts between a plain transport and a protocol.

It buffers nothing. Each read is decrypted and delivered at once as one piece, each write is encrypted and passed down
at once, so back-pressure in both directions is that of the plain transport. An event costs one call into OpenSSL per
direction: after a complete record a further read would only raise an exception. Its buffer is as long as what has come,
since `ssl` allocates it anew for each read.

TLS ends a direction with close_notify (RFC 8446 § 6.1). The peer's is reported as `eof_received`; a FIN without it may
be an attacker's and ends the connection with an error. `write_eof` sends close_notify. Renegotiation is refused by the
context.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, cast

from balancer.tls.client_certificate import CertificateFields, certificate_fields, has_expired
from balancer.tls.client_hello import NO_APPLICATION_PROTOCOL, offers_only_others

RECORD: Final = 16_384
"""Maximum bytes of a record (RFC 8446 § 5.1), so that one read takes a whole one."""

OVERHEAD: Final = 22
"""Bytes of a record of TLS 1.3 beside its content and padding (RFC 8446 § 5.2): header, type of content and tag."""

MAX_UNREAD_BYTES = 262_144
"""Maximum bytes in the write buffer for a peer that makes OpenSSL answer (KeyUpdate) and does not read."""

NO_PROTOCOL = asyncio.Protocol()
"""Protocol that replaces the real one after the connection is lost; it breaks the reference cycle."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """TLS layer: a protocol to the plain transport below, a transport to the `protocol` above.

    `on_handshake` is called once, with None right before `protocol.connection_made`, or with the error. `name` is the
    server name on the client side; without it this is the server side. `session`: session that a client offers for
    resumption. `unnamed`: context with which a server restarts the handshake if the client's SNI is not ASCII, which
    `ssl` cannot pass to the `sni_callback` of `context`. `protocols`: those that a server takes by ALPN; a client that
    offers only others is refused. `certificate_fields`: what workers get of a client's certificate.
    """

    _plain: asyncio.Transport
    _send: Callable[[bytes], None]

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: asyncio.BaseProtocol,
        on_handshake: Callable[[Exception | None], None],
        name: str | None = None,
        session: ssl.SSLSession | None = None,
        unnamed: ssl.SSLContext | None = None,
        protocols: Collection[bytes] = (),
        certificate_fields: CertificateFields = "off",
    ) -> None:
        self._use(context, name, session)
        self._on_handshake: Callable[[Exception | None], None] | None = on_handshake
        self._unnamed = unnamed
        self._protocols = protocols
        self._certificate_fields = certificate_fields
        self._hello = bytearray()  # bytes of the client, while `unnamed` may be needed
        self._error: Exception | None = None  # overrides the error of `connection_lost`
        self._overhead = 0  # `OVERHEAD`, once it is known that records have it
        self._has_part = True  # OpenSSL may have the beginning of a record
        self._is_open = False  # the handshake is done, and the connection is not lost
        self._is_ended = False  # the peer has sent close_notify
        self._is_closing = False
        self._is_mute = False  # close_notify has been sent, or cannot be sent any more
        self.set_protocol(protocol)

    def _use(self, context: ssl.SSLContext, name: str | None, session: ssl.SSLSession | None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=name is None, server_hostname=name, session=session
        )
        self._take, self._drain = self._incoming.write, self._outgoing.read
        # the methods of `_object` are Python functions that only call those of `_sslobj`
        calls = getattr(self._object, "_sslobj", self._object)
        self._decrypt, self._encrypt = calls.read, calls.write

    # --- asyncio.Protocol, towards the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)
        self._send = self._plain.write
        self._do_handshake()

    def data_received(self, data: bytes) -> None:
        if self._is_ended or self._is_closing:
            return
        self._take(data)
        if self._is_open:
            self._read(len(data))
            return
        if self._unnamed is not None:
            self._hello += data
            if self._protocols and offers_only_others(self._hello, self._protocols):
                self._send(NO_APPLICATION_PROTOCOL)
                self._fail(ConnectionResetError("the client offers no protocol that is served (ALPN)"))
                return
        self._do_handshake()

    def eof_received(self) -> bool:
        if self._is_ended:
            return not self._is_closing
        missing = "without close_notify" if self._is_open else "within the handshake"
        self._fail(ConnectionResetError(f"the connection ended {missing}"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = self._is_mute = True
        error = self._error or error
        if self._is_open:
            self._is_open = False
            cast(asyncio.Protocol, self._protocol).connection_lost(error)
        else:
            self._handshake_ended(error or ConnectionResetError("the connection ended within the handshake"))
        self.set_protocol(NO_PROTOCOL)

    def pause_writing(self) -> None:
        if self._is_open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._protocol.resume_writing()

    # --- asyncio.Transport, towards the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_mute:
            self._encrypt(data)
            self._send(self._drain())

    def write_eof(self) -> None:
        """Send close_notify and a FIN; reading continues."""
        if not self._is_mute:
            self._notify()
            self._plain.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Send what was written, then close_notify, and close without waiting for the peer's."""
        if not self._is_closing:
            self._is_closing = True
            if not self._is_mute:
                self._notify()
            self._plain.close()

    def abort(self) -> None:
        self._is_closing = self._is_mute = True
        self._plain.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._plain.is_closing()

    def pause_reading(self) -> None:
        self._plain.pause_reading()

    def resume_reading(self) -> None:
        self._plain.resume_reading()

    def is_reading(self) -> bool:
        return self._plain.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._plain.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._plain.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._deliver: Callable[[bytes], None] = cast(asyncio.Protocol, protocol).data_received

    @property
    def below(self) -> asyncio.Transport:
        return self._plain

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Extra info of the plain transport, and `ssl_object`, `sslcontext`, `certificate_fields`."""
        if name == "ssl_object":
            return self._object
        if name == "sslcontext":
            return self._object.context
        if name == "certificate_fields":
            return certificate_fields(self._object, self._certificate_fields)
        return self._plain.get_extra_info(name, default)

    # --- records

    def _do_handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            if self._outgoing.pending:  # the hello is accepted
                self._forget_hello()
            self._flush()
            return
        except (ssl.SSLError, ValueError) as error:  # ValueError: invalid name or certificate
            if self._unnamed is not None and getattr(error, "reason", None) == "CALLBACK_FAILED":
                self._begin_again(self._unnamed)
            else:
                self._fail(error)
            return
        self._forget_hello()
        if self._object.server_side and self._object.session_reused and has_expired(self._object):
            self._drain()  # without a new ticket
            self._fail(ConnectionResetError("the certificate of the client's session has expired"))
            return
        self._flush()
        self._is_open = True
        name, version, _ = self._object.cipher() or ("", "", 0)
        if version == "TLSv1.3" and "CCM_8" not in name:  # whose tag is shorter
            self._overhead = OVERHEAD
        self._handshake_ended(None)
        self._protocol.connection_made(self)
        if self._incoming.pending:
            self._read(RECORD)

    def _begin_again(self, context: ssl.SSLContext) -> None:
        """Restart the handshake with another context, which the client does not notice: nothing has been sent yet."""
        hello = self._hello
        self._forget_hello()
        self._use(context, None, None)
        self._take(hello)
        self._do_handshake()

    def _forget_hello(self) -> None:
        self._unnamed = None
        self._hello = bytearray()

    def _read(self, size: int) -> None:
        """Decrypt and deliver all complete records as one piece; `size` bytes have come."""
        data = b""
        had_part, self._has_part = self._has_part, False
        try:
            data = self._decrypt(RECORD if had_part or size > RECORD else size)
        except ssl.SSLWantReadError:
            self._has_part = True
        except ssl.SSLZeroReturnError:  # once ours has been sent; before, b""
            self._is_ended = True
        except ssl.SSLError as error:
            self._fail(error)
            return
        else:
            if len(data) + self._overhead == size and not had_part:  # they were one record
                self._deliver(data)
                return
            self._is_ended = not data
        if self._incoming.pending:
            data = self._read_on(data)
        if self._outgoing.pending:
            self._answer()
        if data and not self._is_closing:
            self._deliver(data)
        if self._is_ended or self._error is not None:
            self._read_last()

    def _read_on(self, data: bytes) -> bytes:
        """Decrypt the records after the first. An error in one is reported after the data before it has been
        delivered."""
        pieces = [data]
        try:
            while self._incoming.pending and not self._is_ended:
                pieces.append(self._decrypt(RECORD))
                self._is_ended = not pieces[-1]
        except ssl.SSLWantReadError:
            self._has_part = True
        except ssl.SSLZeroReturnError:
            self._is_ended = True
        except ssl.SSLError as error:
            self._error = error
        return b"".join(pieces)

    def _read_last(self) -> None:
        """Handle the end of reading: an error, or the peer's close_notify."""
        if self._error is not None:
            self._fail(self._error)
        elif not self._is_closing and not cast(asyncio.Protocol, self._protocol).eof_received():
            self.close()

    def _answer(self) -> None:
        """Send what OpenSSL wrote while reading; abort if the peer lets too much of it pile up."""
        self._flush()
        if self._plain.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._plain.is_closing():
            self._send(self._drain())

    # --- closing

    def _notify(self) -> None:
        self._is_mute = True
        with suppress(ssl.SSLError, ValueError):  # without the peer's close_notify, or without a handshake
            self._object.unwrap()
        self._flush()

    def _fail(self, error: Exception) -> None:
        """Close because of an error, after sending the alert that OpenSSL has written."""
        error.__traceback__ = (
            None  # its frames refer to this transport: a cycle, which would hold the context
        )
        self._error = error
        if not self._is_closing:
            self._is_closing = self._is_mute = True
            self._flush()
            if not self._is_open:
                self._handshake_ended(error)  # the callback may still write plain bytes
            self._plain.close()

    def _handshake_ended(self, error: Exception | None) -> None:
        on_handshake, self._on_handshake = self._on_handshake, None
        if on_handshake is not None:
            on_handshake(error)
