"""Sequential client over HTTP/1.1 or HTTP/2, with or without TLS, for timing.

Blocking sockets, so that no event loop adds delay; HTTP/2 by the h2 library on the same socket. Any certificate is
accepted.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset
from hyperframe.frame import GoAwayFrame

from experiments.errors import FleetFailedError

TIMEOUT = 30.0
READ_SIZE = 1 << 16
FRAME_HEAD = 9  # RFC 9113 section 4.1
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


@dataclass(slots=True)
class Answer:
    """Response to one request."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


def client_context(target: Target) -> ssl.SSLContext:
    """TLS context for one version of TLS and one of HTTP. Keep it to resume sessions: they belong to their context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the system's authorities take 30 ms to load
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if target.tls is not None:
        context.minimum_version = context.maximum_version = VERSIONS[target.tls]
    context.set_alpn_protocols(["h2"] if target.http == "2" else ["http/1.1"])
    return context


class Connection:
    """One connection, opened by the constructor. Raises `OSError`, `FleetFailedError`.

    `appconnect` is the time of the TCP and TLS handshakes in seconds.
    """

    def __init__(
        self, target: Target, context: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
    ) -> None:
        self.target = target
        began_at = time.perf_counter()
        self.socket = socket.create_connection((target.host, target.port), TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            context = context or client_context(target)
            self.socket = context.wrap_socket(self.socket, server_hostname=target.host, session=session)
        self.appconnect = time.perf_counter() - began_at
        if target.http == "2":
            self._h2 = H2Connection()
            self._h2.initiate_connection()
            self._begun = b""  # incomplete frame

    @property
    def is_resumed(self) -> bool:
        return isinstance(self.socket, ssl.SSLSocket) and bool(self.socket.session_reused)

    @property
    def session(self) -> ssl.SSLSession | None:
        """TLS session to resume on another connection. With TLS 1.3 it arrives after the handshake."""
        return self.socket.session if isinstance(self.socket, ssl.SSLSocket) else None

    def call(self, method: str = "GET", body: bytes = b"") -> Answer:
        """Send one request and wait for the whole response. Raises `OSError`, `FleetFailedError`."""
        if self.target.http == "2":
            return self.receive([self.send(method, body)])[0]
        head = f"{method} {self.target.path} HTTP/1.1\r\nHost: {self.target.authority}\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self._read_http1()

    def send(self, method: str = "GET", body: bytes = b"") -> int:
        """Send an HTTP/2 request on a new stream; returns the stream id. `body` must fit into the first window."""
        number = self._h2.get_next_available_stream_id()
        fields = [
            (":method", method),
            (":scheme", "https" if self.target.tls else "http"),
            (":authority", self.target.authority),
            (":path", self.target.path),
        ]
        self._h2.send_headers(number, fields, end_stream=not body)
        for at in range(0, len(body), size := self._h2.max_outbound_frame_size):
            self._h2.send_data(number, body[at : at + size], end_stream=at + size >= len(body))
        self.socket.sendall(self._h2.data_to_send())
        return number

    def receive(self, numbers: Sequence[int]) -> list[Answer]:
        """Wait for the HTTP/2 responses on these streams. Raises `OSError`, `FleetFailedError`."""
        answers = {number: Answer() for number in numbers}
        while not all(answer.is_whole for answer in answers.values()):
            if not (data := self.socket.recv(READ_SIZE)):
                raise FleetFailedError("the worker closed the connection in the middle of an answer")
            for frame in self._frames(data):
                if frame[3] == GoAwayFrame.type:
                    part(frame, answers)
                    continue
                for event in self._h2.receive_data(frame):
                    self._meet(event, answers)
            if reply := self._h2.data_to_send():
                self.socket.sendall(reply)
        return list(answers.values())

    def close(self) -> None:
        """Close the socket without a shutdown handshake."""
        self.socket.close()

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Split off complete frames. h2 accepts none after a GOAWAY, though open streams continue (RFC 9113 § 6.8)."""
        kept, at = self._begun + data, 0
        while (end := at + FRAME_HEAD + int.from_bytes(kept[at : at + 3], "big")) <= len(kept):
            yield kept[at:end]
            at = end
        self._begun = kept[at:]

    def _meet(self, event: object, answers: dict[int, Answer]) -> None:
        match event:
            case ResponseReceived(stream_id=int() as number, headers=[(_, status), *_]):
                answers[number].status = int(status)
            case DataReceived(stream_id=int() as number):
                answers[number].body += event.data or b""
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
            case StreamEnded(stream_id=int() as number):
                answers[number].is_whole = True
            case StreamReset(stream_id=int() as number) if number in answers:
                raise FleetFailedError(f"the worker broke off: {event.error_code}")

    def _read_http1(self) -> Answer:
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head = bytes(data[:end]).lower()
        length = int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        body = data[end + 4 :]
        while len(body) < length:
            body += self._more()
        return Answer(int(head.split(b" ")[1]), body, True)

    def _more(self) -> bytes:
        if data := self.socket.recv(READ_SIZE):
            return data
        raise FleetFailedError("the worker closed the connection in the middle of an answer")


def part(goaway: bytes, answers: Mapping[int, Answer]) -> None:
    """Check a GOAWAY: streams up to its last id are still answered. Raises `FleetFailedError` for later ones."""
    last = int.from_bytes(goaway[FRAME_HEAD : FRAME_HEAD + 4], "big") & 0x7FFFFFFF
    code = int.from_bytes(goaway[FRAME_HEAD + 4 : FRAME_HEAD + 8], "big")
    if any(number > last for number, answer in answers.items() if not answer.is_whole):
        raise FleetFailedError(f"the worker left before it took the request: {code}")
