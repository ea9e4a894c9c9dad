"""Sequential client over HTTP/1.1 or HTTP/2, with or without TLS, for timing.

Blocking sockets, so that no event loop adds delay; HTTP/2 by the ngh2 library on the same socket. Any certificate is
accepted.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import ngh2

from experiments.errors import FleetFailedError

TIMEOUT = 30.0
READ_SIZE = 1 << 16
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Target:
    """Address and protocol: `tls` None, "1.2" or "1.3", `http` "1.1" or "2"."""

    host: str
    port: int
    tls: str | None = None
    http: str = "1.1"
    path: str = "/work"

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"


class Response(NamedTuple):
    """Response to one request."""

    status: int
    body: bytes


def client_context(target: Target) -> ssl.SSLContext:
    """TLS context for one version of TLS and one of HTTP. Keep it to resume sessions: they belong to their context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the system's authorities take 30 ms to load
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if target.tls is not None:
        context.minimum_version = context.maximum_version = VERSIONS[target.tls]
    context.set_alpn_protocols(["h2"] if target.http == "2" else ["http/1.1"])
    return context


class BlockingConnection:
    """One connection, opened by the constructor. Raises `OSError`."""

    def __init__(
        self, target: Target, context: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
    ) -> None:
        self.target = target
        self.socket = socket.create_connection((target.host, target.port), TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            context = context or client_context(target)
            self.socket = context.wrap_socket(self.socket, server_hostname=target.host, session=session)
        if target.http == "2":
            self._h2 = ngh2.Connection(ngh2.Role.CLIENT)
            self._h2.initiate_connection({ngh2.Setting.ENABLE_PUSH: 0})

    def call(self, method: str = "GET", body: bytes = b"") -> Response:
        """Send one request and wait for the whole response. Raises `OSError`, `FleetFailedError`."""
        if self.target.http == "2":
            self.send(method, body)
            return self._receive()
        head = f"{method} {self.target.path} HTTP/1.1\r\nHost: {self.target.authority}\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return read_response(self.socket)

    def send(self, method: str = "GET", body: bytes = b"") -> None:
        """Send an HTTP/2 request on a new stream."""
        fields = [
            (b":method", method.encode()),
            (b":scheme", b"https" if self.target.tls else b"http"),
            (b":authority", self.target.authority.encode()),
            (b":path", self.target.path.encode()),
        ]
        number = self._h2.send_request(fields, end_stream=not body)
        if body:
            self._h2.send_data(number, body, end_stream=True)
        self.socket.sendall(self._h2.data_to_send())

    def close(self) -> None:
        """Close the socket without a shutdown handshake."""
        self.socket.close()

    def _receive(self) -> Response:
        """Read from the HTTP/2 connection until the only open stream ends."""
        status, body, has_ended = 0, b"", False
        while not has_ended:
            try:
                self._h2.receive_data(read(self.socket))
                reply = self._h2.data_to_send()
            except ngh2.NGH2Error as error:
                raise FleetFailedError(f"the worker's HTTP/2 is invalid: {error}") from None
            if reply:
                self.socket.sendall(reply)
            for event in self._h2.events():
                match event:
                    case ngh2.ResponseReceived(_, [(_, value), *_], has_ended):
                        status = int(value)
                    case ngh2.DataReceived(_, data, has_ended):
                        body += data
                    case ngh2.StreamReset() | ngh2.ConnectionClosed() if not has_ended:
                        raise FleetFailedError(f"the worker reset the stream: {event.error_code}")
        return Response(status, body)


def read_response(connection: socket.socket) -> Response:
    """Read an HTTP/1.1 response that has a Content-Length. Raises `OSError`, `FleetFailedError`."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n") + 4) < 4:
        data += read(connection)
    found = LENGTH.search(data, 0, end)
    assert found is not None
    whole = end + int(found[1])
    while len(data) < whole:
        data += read(connection)
    return Response(int(data[9:12]), bytes(data[end:]))


def read(connection: socket.socket) -> bytes:
    """The next bytes. Raises `OSError`, `FleetFailedError` at the end of the stream."""
    if data := connection.recv(READ_SIZE):
        return data
    raise FleetFailedError("the connection closed in the middle of a response")


def consecutive_calls(target: Target, context: ssl.SSLContext | None, calls: int) -> list[float]:
    """Seconds of each of `calls` requests on one connection; the first includes the handshakes."""
    took, began_at = [], time.perf_counter()
    with closing(BlockingConnection(target, context)) as connection:
        for _ in range(calls):
            response = connection.call()
            ended_at = time.perf_counter()
            took.append(ended_at - began_at)
            began_at = ended_at
            if response.status != 200:
                raise FleetFailedError(f"{target.authority} answered {response.status}")
    return took
