"""One request through libcurl: sets its options and converts its callbacks to stream events.

libcurl runs its callbacks from within its own calls, where it must not be called. Callbacks therefore only collect
data, and `settle` passes it on after libcurl has returned. libcurl is configured to add no header fields, follow no
redirects, and decode nothing but chunked transfer coding.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

import pycurl

from balancer.errors import (
    ConnectFailed,
    ConnectionBroken,
    ConnectTimeout,
    MalformedResponse,
    NameUnresolved,
    UpstreamError,
    WorkerUntrusted,
)
from balancer.http.h1.field_list import FieldList, Fields, head_of, trailers_of
from balancer.tls.contexts import ClientTls
from balancer.upstream.dial.dial import CERTIFICATE_KINDS, FAILED, NAME_UNRESOLVED, kind_of
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.library.connection import LibraryStream
from balancer.upstream.stream import UpstreamStream

if TYPE_CHECKING:
    from balancer.upstream.library.curl import CurlConnection

DEFAULT_FIELDS = (b"accept", b"user-agent", b"expect", b"content-type")
"""Header fields that libcurl adds to a request that lacks them."""

UNREACHABLE = {
    pycurl.E_COULDNT_CONNECT,
    pycurl.E_INTERFACE_FAILED,
}
UNTRUSTED = {
    pycurl.E_SSL_CONNECT_ERROR,
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CERTPROBLEM,
    pycurl.E_SSL_CIPHER,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_ISSUER_ERROR,
}
VERIFY_OK = (0, 1)
"""Certificate verification results that name no fault: X509_V_OK, and X509_V_ERR_UNSPECIFIED, OpenSSL's initial
value."""

TOO_LARGE = 100
"""CURLE_TOO_LARGE, for a response head that is too large; pycurl has no name for it."""

MALFORMED = {
    TOO_LARGE,
    pycurl.E_UNSUPPORTED_PROTOCOL,  # HTTP/0.9: any response that does not begin with HTTP/
    pycurl.E_FTP_WEIRD_SERVER_REPLY,
    pycurl.E_HTTP2,
}

PHASES = (pycurl.NAMELOOKUP_TIME, pycurl.CONNECT_TIME, pycurl.APPCONNECT_TIME)
"""libcurl's connect phases; the last is 0 without TLS."""


def error_of(handle: Any, code: int, message: str) -> UpstreamError:
    """Convert a libcurl error code and message to an `UpstreamError`."""
    line = " ".join(message.split()) or f"libcurl: error {code}"
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return ConnectTimeout(line)
    if code == pycurl.E_COULDNT_RESOLVE_HOST:
        return NameUnresolved(NAME_UNRESOLVED, line)
    if code in UNREACHABLE:
        number = handle.getinfo(pycurl.OS_ERRNO)
        return ConnectFailed(os.strerror(number) if number else line, line, kind_of(OSError(number, line)))
    if code in UNTRUSTED:
        return WorkerUntrusted(FAILED, f"TLS handshake failed: {line}", _verify_fault_kind(handle, code))
    return MalformedResponse(line) if code in MALFORMED else ConnectionBroken(line)


def _verify_fault_kind(handle: Any, code: int) -> str | None:
    """Kind of certificate fault by OpenSSL's verification result. libcurl compares the host name itself, so a failed
    verification without a result is a wrong name."""
    if code != pycurl.E_PEER_FAILED_VERIFICATION:
        return None
    verdict = handle.getinfo(pycurl.SSL_VERIFYRESULT)
    return "certificate_name" if verdict in VERIFY_OK else CERTIFICATE_KINDS.get(verdict, "certificate")


class CurlTransfer(LibraryStream):
    """`Stream` of one request through libcurl. `handle` is its curl handle, None once it has ended."""

    def __init__(self, connection: CurlConnection, stream: UpstreamStream, handle: Any) -> None:
        super().__init__(stream)
        self.handle: Any = handle
        self._connection = connection
        self._is_starved = False  # libcurl waits for more of the body
        self._is_paused = False
        self._is_full = False  # libcurl holds data that was refused
        self._line: tuple[int, bytes] = (0, b"")
        self._fields: Fields = []
        self._has_head = False
        self._came: list[tuple[bool, bytes]] = []  # (True, head) or (False, bytes of the body)

    # --- set up

    def describe(self, outline: FieldList) -> None:
        """Set the options of the curl handle for the request."""
        handle, connection = self.handle, self._connection
        settings = connection.pool.pools.settings
        handle.setopt(pycurl.URL, connection.url)
        handle.setopt(pycurl.REQUEST_TARGET, outline.target)
        handle.setopt(pycurl.CUSTOMREQUEST, outline.method)
        if outline.method == b"HEAD":
            handle.setopt(pycurl.NOBODY, 1)
        handle.setopt(pycurl.HTTPHEADER, _lines(outline))
        if outline.length:
            handle.setopt(pycurl.UPLOAD, 1)
            handle.setopt(pycurl.READFUNCTION, self._read)
            handle.setopt(pycurl.INFILESIZE_LARGE, outline.length)
        handle.setopt(pycurl.WRITEFUNCTION, self._write)
        handle.setopt(pycurl.HEADERFUNCTION, self._header)
        handle.setopt(pycurl.HTTP_CONTENT_DECODING, 0)
        handle.setopt(pycurl.PROXY, "")
        handle.setopt(pycurl.NOSIGNAL, 1)
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(settings.timeouts.connect * 1000)))
        if not connection.pool.keeps_alive:
            handle.setopt(pycurl.FRESH_CONNECT, 1)
            handle.setopt(pycurl.FORBID_REUSE, 1)
        handle.setopt(pycurl.MAXAGE_CONN, max(1, int(settings.pool.idle_timeout)))
        handle.setopt(pycurl.MAXLIFETIME_CONN, max(1, int(settings.pool.max_age)))
        if connection.tls is None:
            handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        else:
            self._secure(connection.tls)

    def _secure(self, tls: ClientTls) -> None:
        handle, config = self.handle, tls.config
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
        handle.setopt(pycurl.PIPEWAIT, 1)
        handle.setopt(pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2)
        handle.setopt(pycurl.CONNECT_TO, ["::{}:{}".format(*self._connection.origin)])
        if not config.verify:
            handle.setopt(pycurl.SSL_VERIFYPEER, 0)
            handle.setopt(pycurl.SSL_VERIFYHOST, 0)
        trusted = ssl.get_default_verify_paths()
        if config.ca is not None:
            handle.setopt(pycurl.CAINFO, os.fspath(config.ca))
        elif trusted.cafile is not None:
            handle.setopt(pycurl.CAINFO, trusted.cafile)
        elif trusted.capath is not None:
            handle.setopt(pycurl.CAPATH, trusted.capath)
        if config.certificate is not None:
            handle.setopt(pycurl.SSLCERT, os.fspath(config.certificate))
            handle.setopt(pycurl.SSLKEY, os.fspath(config.key or config.certificate))

    # --- libcurl callbacks

    def _read(self, size: int) -> bytes | int:
        if not self._pending:
            if self._is_ending:
                return b""
            self._is_starved = True
            return int(pycurl.READFUNC_PAUSE)
        data = self._pending.popleft()
        if len(data) > size:
            self._pending.appendleft(data[size:])
            data = data[:size]
        self.unsent -= len(data)
        self._connection.client.touch(self)
        return data

    def _write(self, data: bytes) -> int | None:
        if self._is_paused:
            self._is_full = True
            return int(pycurl.WRITEFUNC_PAUSE)
        self._came.append((False, data))
        self._connection.client.touch(self)
        return None

    def _header(self, line: bytes) -> None:
        """Handle a line from libcurl: of a head, its empty line, or of trailers behind the head."""
        text = line.rstrip(b"\r\n")
        if not text:
            self._head_ended()
        elif not (self._line[0] or self._has_head):
            _, _, rest = text.partition(b" ")
            status, _, reason = rest.partition(b" ")
            self._line = (int(status) if status.isdigit() else 0), reason
        else:
            name, _, value = text.partition(b":")
            self._fields.append((name, value.strip(b" \t")))

    def _head_ended(self) -> None:
        if self._has_head:
            return
        status, reason = self._line
        try:
            head = head_of(status, self._fields, reason)
        except MalformedResponse:
            head = b""
        self._has_head = status >= 200
        self._line, self._fields = (0, b""), []
        self._came.append((True, head))
        self._connection.client.touch(self)

    # --- after libcurl has returned

    def settle(self) -> None:
        """Pass on collected events; called when libcurl has returned."""
        if self._came:
            self._deliver()
            self.stream.deliver()
        self._drained()

    def _deliver(self) -> None:
        came, self._came = self._came, []
        for is_head, data in came:
            if is_head:
                self.stream.receive_head(data)
            else:
                self.stream.receive_body(data)

    def ended(self, error: UpstreamError | None) -> None:
        if error is not None:
            self.settle()
            self.stream.fail(self._connection.pool.failed(error))
            return
        self._deliver()
        try:
            self.stream.receive_end(trailers_of(self._fields))
        except MalformedResponse as fault:
            self.stream.fail(fault)
        self.stream.deliver()

    def count_connects(self) -> None:
        """Count the connections that libcurl opened for this transfer; without one, it reused one."""
        counts, connected = self._connection.pool.counts, self.handle.getinfo(pycurl.NUM_CONNECTS)
        if not connected:
            counts.reused += 1
            return
        found, opened, handshake_done = (self.handle.getinfo(phase) for phase in PHASES)
        counts.opened += connected - 1
        counts.count_opened(DialTimes(found, opened, handshake_done or opened))

    # --- Stream

    def _feed(self) -> None:
        if self._is_starved and self.handle is not None:
            self._is_starved = False
            self._connection.client.go_on(self)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._is_full and self.handle is not None:
            self._is_full = False
            self._connection.client.go_on(self)

    def cancel(self) -> None:
        super().cancel()
        self._connection.client.forget(self)


def _lines(outline: FieldList) -> list[bytes]:
    """Header lines in libcurl's syntax: "Name;" sends a field with an empty value, "Name:" suppresses a field."""
    fields = [(name, value) for name, value in outline.fields if name.lower() != b"content-length"]
    if outline.length == 0 and len(fields) < len(outline.fields):
        fields.append((b"Content-Length", b"0"))
    names = {name.lower() for name, _ in fields}
    lines = [b"Host: " + outline.authority] if outline.authority else []
    lines += [b"%b: %b" % pair if pair[1] else pair[0] + b";" for pair in fields]
    return lines + [name + b":" for name in DEFAULT_FIELDS if name not in names]
