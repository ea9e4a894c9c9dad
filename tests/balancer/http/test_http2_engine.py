"""Contract of the HTTP/2 engine: what the connections to clients and workers rely on, whatever library is inside."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hpack import Encoder

from balancer.http.h2.client_engine import ClientEngine
from balancer.http.h2.engine import Engine
from balancer.http.h2.events import (
    CANCEL,
    CLOSED,
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEAD,
    INTERIM,
    NO_ERROR,
    OVERSIZED,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RESET,
    SETTINGS,
    TRAILERS,
    Event,
)
from balancer.http.h2.limits import (
    BYTES_PER_FRAME,
    FRAMES_PER_HEAD,
    FRAMES_PER_PART,
    LINGER_TICKS,
    LONGEST_FRAME,
    LONGEST_LINGER,
    PIECE,
    WINDOW,
    Http2Limits,
)
from balancer.http.h2.sendable import UnsendableFields
from balancer.http.h2.server_engine import ServerEngine
from tests.support import frames
from tests.support.frames import END_HEADERS, PREFACE, block, frame, frames_of, head, rst

GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")]
POST = [(b":method", b"POST"), *GET[1:]]
OK = [(b":status", b"200")]
STREAM_WINDOW = 65_536
LIMITS = Http2Limits(
    streams=10, stream_window=STREAM_WINDOW, header_list=4096, idle_frames=50, resets=20, resets_per_tick=5
)


class Pair:
    """A client and a server, each the other's peer; `client_heard` and `server_heard` are all events so far."""

    def __init__(self, limits: Http2Limits = LIMITS, *, connect: bool = False) -> None:
        self.client, self.server = ClientEngine(limits), ServerEngine(limits, connect=connect)
        self.client_heard: list[Event] = []
        self.server_heard: list[Event] = []
        self.turn()
        self.client_heard.clear()
        self.server_heard.clear()

    def turn(self) -> None:
        """Exchange bytes until both are silent."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.data_to_send()
            self.server_heard += self.server.receive(to_server)
            self.client_heard += self.client.receive(to_client)
            if not (to_server or to_client):
                return


def lone_server(limits: Http2Limits = LIMITS) -> ServerEngine:
    """A server whose client is the test."""
    server = ServerEngine(limits)
    assert server.receive(PREFACE + frame(frames.SETTINGS)) == [(SETTINGS, 0, None, False)]
    server.data_to_send()
    return server


def lone_client(limits: Http2Limits = LIMITS) -> ClientEngine:
    """A client whose server is the test, with stream 1 open."""
    client = ClientEngine(limits)
    client.receive(frame(frames.SETTINGS))
    assert client.request(GET, is_last=True) == 1
    client.data_to_send()
    return client


def kinds(events: list[Event]) -> list[int]:
    return [event[0] for event in events]


def goaway_of(engine: Engine) -> tuple[int, int]:
    """The last GOAWAY sent: stream id and code."""
    payloads = [payload for kind, _, _, payload in frames_of(engine.data_to_send()) if kind == frames.GOAWAY]
    last, code = struct.unpack("!II", payloads[-1][:8])
    return last, code


# --- messages


def test_exchange() -> None:
    """A request with body and trailers, an interim response, a response with body and trailers."""
    pair = Pair()
    stream = pair.client.request([*POST, (b"X-Case", b"1")], is_last=False)
    pair.client.send_data(stream, b"ask", is_last=False)
    pair.client.send_trailers(stream, [(b"X-Sum", b"3")])
    pair.turn()
    assert pair.server_heard == [
        (HEAD, stream, (*POST, (b"x-case", b"1")), False),
        (DATA, stream, b"ask", False),
        (TRAILERS, stream, ((b"x-sum", b"3"),), True),
    ]
    pair.server.interim(stream, [(b":status", b"103"), (b"link", b"</a>")])
    pair.server.respond(stream, OK, is_last=False)
    pair.server.send_data(stream, b"answer", is_last=False)
    pair.server.send_trailers(stream, [(b"grpc-status", b"0")])
    pair.turn()
    assert pair.client_heard == [
        (INTERIM, stream, ((b":status", b"103"), (b"link", b"</a>")), False),
        (HEAD, stream, tuple(OK), False),
        (DATA, stream, b"answer", False),
        (TRAILERS, stream, ((b"grpc-status", b"0"),), True),
    ]


def test_calls_for_an_ended_stream_do_nothing() -> None:
    pair = Pair()
    stream = pair.client.request(GET, is_last=True)
    pair.turn()
    pair.client.reset(stream, CANCEL)
    pair.turn()
    assert pair.server_heard[-1] == (RESET, stream, CANCEL, True)
    server = pair.server
    server.interim(stream, [(b":status", b"103")])
    server.respond(stream, OK, is_last=False)
    server.send_data(stream, b"x", is_last=True)
    server.send_trailers(stream, [(b"a", b"b")])
    server.acknowledge(stream, 10)
    server.discard(stream)
    server.reset(stream, CANCEL)
    assert (server.unsent(stream), server.data_to_send()) == (0, b"")


def test_head_that_is_refused_leaves_no_other_in_its_place() -> None:
    """A head that repeats one which was reset, except for its fault, is not taken for the one before that."""
    server, encoder = lone_server(), Encoder()
    first, second = ([*GET[:3], (b":path", path)] for path in (b"/a", b"/b"))
    heard = []
    for number, fields in enumerate((first, [*second, (b"Foo", b"1")], second)):
        data = encoder.encode(fields, huffman=False)
        heard += server.receive(frame(frames.HEADERS, data, 2 * number + 1, END_HEADERS | frames.END_STREAM))
    heads = [(stream, list(value)) for kind, stream, value, _ in heard if kind == HEAD]
    assert heads == [(1, first), (5, second)]


UNSENDABLE_NAMES = (
    *(b"connection", b"Transfer-Encoding", b"keep-alive", b"upgrade", b"proxy-connection", b"te"),
    *(b"a b", b"", b"a:b", b":x", b"x\r\ny"),
)
UNSENDABLE_VALUES = (b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b")
UNSENDABLE = [
    *((name, b"1") for name in UNSENDABLE_NAMES),
    *((b"x", value) for value in UNSENDABLE_VALUES),
]


@pytest.mark.parametrize("field", UNSENDABLE)
def test_unsendable_fields(field: tuple[bytes, bytes]) -> None:
    """Neither as head nor as trailers, and nothing of the message is sent."""
    pair = Pair()
    with pytest.raises(UnsendableFields):
        pair.client.request([*GET, field], is_last=True)
    stream = pair.client.request(POST, is_last=False)
    with pytest.raises(UnsendableFields):
        pair.client.send_trailers(stream, [field])
    pair.turn()
    for send in (pair.server.interim, pair.server.send_trailers):
        with pytest.raises(UnsendableFields):
            send(stream, [field])
    with pytest.raises(UnsendableFields):
        pair.server.respond(stream, [*OK, field], is_last=True)
    assert kinds(pair.server_heard) == [HEAD]
    assert pair.server.data_to_send() == b""


# --- flow control


def test_body_waits_for_the_window() -> None:
    """A stream's window is withheld until `acknowledge`; other streams go on."""
    pair = Pair()
    slow, other = pair.client.request(POST, is_last=False), pair.client.request(POST, is_last=False)
    pair.client.send_data(slow, bytes(3 * STREAM_WINDOW), is_last=True)
    pair.turn()
    assert pair.client.unsent(slow) == 2 * STREAM_WINDOW
    pair.client.send_data(other, b"x", is_last=True)
    pair.turn()
    assert pair.server_heard[-1] == (DATA, other, b"x", True)
    for left in (1, 0):
        pair.server.acknowledge(slow, STREAM_WINDOW)
        pair.turn()
        assert pair.client.unsent(slow) == left * STREAM_WINDOW
    assert sum(len(event[2]) for event in pair.server_heard if event[:2] == (DATA, slow)) == 3 * STREAM_WINDOW
    assert pair.server_heard[-1][3]


def test_slow_streams_leave_the_connection_its_window() -> None:
    """All but one of the streams withhold all their window: the last one transfers more than the others together."""
    pair = Pair()
    streams = [pair.client.request(POST, is_last=False) for _ in range(LIMITS.streams)]
    for stream in streams[1:]:
        pair.client.send_data(stream, bytes(2 * STREAM_WINDOW), is_last=True)
    pair.turn()
    received = 0
    for _ in range(40):
        pair.client.send_data(streams[0], bytes(STREAM_WINDOW), is_last=False)
        pair.turn()
        for kind, stream, data, _ in pair.server_heard:
            if kind == DATA and stream == streams[0]:
                received += len(data)
                pair.server.acknowledge(stream, len(data))
        pair.server_heard.clear()
    assert received == 40 * STREAM_WINDOW


@pytest.mark.parametrize(
    ("end", "size"),
    [
        ("ended", 2000),
        ("reset by the peer", 1000),
        ("reset from here", 1000),
        ("discarded before more comes", 2000),
        ("broken", 2500),
    ],
)
def test_window_of_ended_streams_is_returned(end: str, size: int) -> None:
    """What a stream has withheld goes back to the connection however it ends, also if it is acknowledged later."""
    server = lone_server()
    for stream in range(1, 41, 2):
        server.receive(head(stream, *POST, (b"content-length", b"2000"), flags=END_HEADERS))
        server.receive(frame(frames.DATA, bytes(1000), stream))
        if end == "ended":
            server.receive(frame(frames.DATA, bytes(1000), stream, frames.END_STREAM))
        elif end == "reset by the peer":
            server.receive(rst(stream))
        elif end == "reset from here":
            server.reset(stream, CANCEL)
        elif end == "discarded before more comes":
            server.respond(stream, OK, is_last=True)
            server.discard(stream)
            assert server.receive(frame(frames.DATA, bytes(1000), stream)) == []
        else:
            server.receive(frame(frames.DATA, bytes(1500), stream))
        server.respond(stream, OK, is_last=True)
        server.acknowledge(stream, 1000)
        server.data_to_send()
        server.tick()
    for _ in range(LINGER_TICKS):
        server.tick()
    assert first_update(server, after=41) == 20 * size


def first_update(server: ServerEngine, after: int) -> int:
    """Receive on a new stream until the connection's window is returned; the bytes returned for other streams."""
    server.receive(head(after, *POST, flags=END_HEADERS))
    received = 0
    while received < WINDOW:
        server.receive(frame(frames.DATA, bytes(16_384), after))
        server.acknowledge(after, 16_384)
        received += 16_384
        for kind, stream, _, payload in frames_of(server.data_to_send()):
            if (kind, stream) == (frames.WINDOW_UPDATE, 0):
                return int.from_bytes(payload, "big") - received
    raise AssertionError("no window was returned")


def test_resets_within_a_frame_wear_the_connection_out() -> None:
    """The window of a part of a frame may be lost: the connection is to be replaced long before it is used up."""
    server = lone_server()
    half = frame(frames.DATA, bytes(16_384), 1)[:1000]
    stream = 1
    while not server.is_worn:
        server.receive(head(stream, *POST, flags=END_HEADERS) + half)
        server.reset(stream, CANCEL)
        server.data_to_send()
        server.receive(bytes(16_384 + 9 - 1000))
        stream += 2
        half = frame(frames.DATA, bytes(16_384), stream)[:1000]
    assert stream < 2 * WINDOW // 16_384
    assert not server.is_closed


def test_blocked_transport() -> None:
    """Nothing is framed while the transport is blocked; answers to floods are bounded all the same."""
    server = lone_server()
    server.is_blocked = True
    assert server.receive(frame(frames.PING, b"12345678")) == []
    server.receive(frame(frames.PING, b"12345678") * 60)
    assert server.is_closed


def order_of_bodies(data: bytes) -> list[int]:
    return [stream for kind, stream, _, payload in frames_of(data) if kind == frames.DATA and payload]


def test_what_is_framed_is_bounded_with_many_streams() -> None:
    """The next call goes on where the last one stopped; what waits meanwhile is counted."""
    pair = Pair(Http2Limits(streams=10, stream_window=1 << 20))
    streams = [pair.client.request(GET, is_last=True) for _ in range(10)]
    pair.turn()
    for stream in streams:
        pair.server.respond(stream, ((b":status", b"200"),), is_last=False)
        pair.server.send_data(stream, bytes(LONGEST_FRAME), is_last=False)
    for stream in streams:
        pair.server.send_data(stream, bytes(4 * LONGEST_FRAME), is_last=True)
    sent = b""
    while data := pair.server.data_to_send(3 * LONGEST_FRAME):
        assert len(data) < 5 * LONGEST_FRAME
        assert pair.server.unsent_in_all == sum(map(pair.server.unsent, streams))
        sent += data
    order = order_of_bodies(sent)
    assert pair.server.unsent_in_all == 0
    assert {stream: order.count(stream) for stream in streams} == dict.fromkeys(streams, 5)
    for end in range(len(order)):
        counts = [order[:end].count(stream) for stream in streams]
        assert max(counts) - min(counts) <= 2


def test_bodies_take_turns() -> None:
    """A frame each, in both roles; a body that is begun later does not wait for the end of the others."""
    pair = Pair()
    streams = [pair.client.request(POST, is_last=False) for _ in range(3)]
    for stream in streams:
        pair.client.send_data(stream, bytes(40_000), is_last=False)
        pair.client.send_data(stream, bytes(9_152), is_last=True)
    sent = pair.client.data_to_send()
    assert order_of_bodies(sent) == [1] * 4 + [3, 5] * 4  # the first part has no other before it
    pair.server.receive(sent)
    for stream in streams:
        pair.server.respond(stream, OK, is_last=False)
        pair.server.send_data(stream, bytes(16_384), is_last=False)
    for stream in streams:
        pair.server.send_data(stream, bytes(32_768), is_last=True)
    sent = pair.server.data_to_send()
    assert order_of_bodies(sent) == [1, 3, 5] * 3
    heard = pair.client.receive(sent)
    assert [event[1] for event in heard if event[3]] == streams


def test_scarce_window_of_the_connection_is_shared() -> None:
    """Each stream gets its turn, though the first one always has more to send."""
    server = lone_server()
    server.receive(frame(frames.SETTINGS, struct.pack("!HI", 4, 2**31 - 1)))
    server.receive(b"".join(head(stream, *GET) for stream in (1, 3, 5)))
    for stream in (1, 3, 5):
        server.respond(stream, OK, is_last=False)
        server.send_data(stream, bytes(200_000), is_last=False)
    order = order_of_bodies(server.data_to_send())
    for _ in range(60):
        server.send_data(1, bytes(16_384), is_last=False)
        server.receive(frame(frames.WINDOW_UPDATE, struct.pack("!I", 10_000)))
        server.tick()
        order += order_of_bodies(server.data_to_send())
    counts = [order[20:].count(stream) for stream in (1, 3, 5)]
    assert max(counts) < 2 * min(counts)


def test_trailers_follow_a_body_that_waits() -> None:
    pair = Pair()
    stream, other = pair.client.request(GET, is_last=True), pair.client.request(GET, is_last=True)
    pair.turn()
    for each in (other, stream):
        pair.server.respond(each, OK, is_last=False)
        pair.server.send_data(each, bytes(40_000), is_last=False)
        pair.server.send_trailers(each, [(b"a", b"b")])
    pair.turn()
    for each in (other, stream):
        heard = [event for event in pair.client_heard if event[1] == each]
        assert sum(len(event[2]) for event in heard if event[0] == DATA) == 40_000
        assert heard[-1] == (TRAILERS, each, ((b"a", b"b"),), True)


# --- ends


def test_end_that_waits_to_be_framed_is_not_cut_off() -> None:
    """An early response whose end waits behind the body of another stream, in a transport that takes it in parts."""
    server = lone_server()
    server.receive(frame(frames.SETTINGS, struct.pack("!HI", 4, 1 << 20)))
    server.receive(frame(frames.WINDOW_UPDATE, struct.pack("!I", 1 << 20)))
    server.receive(head(1, *GET) + head(3, *POST, flags=END_HEADERS))
    server.respond(3, OK, is_last=False)
    server.send_data(3, b"x", is_last=False)
    server.data_to_send()
    server.respond(1, OK, is_last=False)
    server.send_data(1, bytes(250_000), is_last=False)
    server.send_data(3, b"", is_last=True)
    server.discard(3)
    server.tick()
    parts = [server.data_to_send(100_000) for _ in range(4)]
    assert of_stream(3, b"".join(parts)) == [(frames.DATA, frames.END_STREAM)]


def test_rest_of_an_answered_request_is_dropped() -> None:
    """A client may read nothing before it has sent all: it gets window, and as long as it goes on, no reset."""
    server = lone_server()
    server.receive(head(1, *POST, flags=END_HEADERS))
    server.receive(frame(frames.DATA, bytes(1000), 1))
    server.respond(1, OK, is_last=True)
    server.discard(1)
    returned = 0
    for tick in range(LONGEST_LINGER + 1):
        for _ in range(STREAM_WINDOW // 16_384):
            assert server.receive(frame(frames.DATA, bytes(16_384), 1)) == []
            returned += sum(
                int.from_bytes(payload, "big")
                for kind, stream, _, payload in frames_of(server.data_to_send())
                if (kind, stream) == (frames.WINDOW_UPDATE, 1)
            )
        assert returned > tick * STREAM_WINDOW
        server.tick()
    assert of_stream(1, server.data_to_send()) == [(frames.RST_STREAM, 0)]


def of_stream(wanted: int, data: bytes) -> list[tuple[int, int]]:
    return [(kind, flags) for kind, stream, flags, _ in frames_of(data) if stream == wanted]


def test_early_response_waits_for_the_end_of_the_request() -> None:
    """Many clients drop the response of a stream that is reset while they send, if only its end."""
    server = lone_server()
    for stream in (1, 3):
        server.receive(head(stream, *POST, (b"content-length", b"1"), flags=END_HEADERS))
        server.receive(frame(frames.DATA, b"x", stream))
        server.respond(stream, OK, is_last=True)
        server.discard(stream)
    ends = [(frames.HEADERS, END_HEADERS | frames.END_STREAM)]
    sent = server.data_to_send()
    assert of_stream(1, sent) == of_stream(3, sent) == ends
    for _ in range(LINGER_TICKS):
        server.tick()
        assert server.data_to_send() == b""
    server.receive(frame(frames.DATA, b"", 1, frames.END_STREAM))
    server.is_blocked = True
    server.tick()
    assert server.data_to_send() == b""
    server.is_blocked = False
    server.tick()
    assert [*frames_of(server.data_to_send())] == [(frames.RST_STREAM, 3, 0, bytes(4))]


def test_empty_data_before_a_response() -> None:
    """It is not reported: it belongs to no message."""
    client = lone_client()
    stream = client.request(GET, is_last=True)
    client.data_to_send()
    early = head(stream, (b":status", b"103"), flags=END_HEADERS) + frame(frames.DATA, b"", stream)
    assert kinds(client.receive(early)) == [INTERIM]
    rest = head(stream, *OK, flags=END_HEADERS) + frame(frames.DATA, b"a", stream, frames.END_STREAM)
    assert kinds(client.receive(rest)) == [HEAD, DATA]


def test_streams_that_goaway_leaves_out_keep_their_order() -> None:
    client = lone_client()
    streams = [client.request(GET, is_last=True) for _ in range(20)]
    client.data_to_send()
    heard = client.receive(frame(frames.GOAWAY, struct.pack("!II", 1, NO_ERROR)))
    assert [event[1] for event in heard if event[0] == RESET] == streams


def test_last_response_after_goaway() -> None:
    """The connection of a client that goes away ends with the last response, and nothing follows it."""
    pair = Pair()
    stream = pair.client.request(GET, is_last=True)
    pair.turn()
    pair.server.receive(frame(frames.GOAWAY, struct.pack("!II", 0, NO_ERROR)))
    pair.server.respond(stream, OK, is_last=True)
    assert [kind for kind, *_ in frames_of(pair.server.data_to_send())] == [frames.HEADERS]
    assert pair.server.events() == [(CLOSED, 0, (NO_ERROR, "NO_ERROR"), True)]
    assert pair.server.data_to_send() == b""


def test_request_that_goaway_overtakes() -> None:
    """A request that is submitted but not sent is refused."""
    client = lone_client()
    assert client.request(GET, is_last=True) == 3
    heard = client.receive(frame(frames.GOAWAY, struct.pack("!II", 1, NO_ERROR)))
    assert heard[:2] == [(GOAWAY, 1, NO_ERROR, False), (RESET, 3, REFUSED_STREAM, False)]


# --- settings


def test_settings() -> None:
    """A limit of streams is always stated; extended CONNECT only if asked for."""
    pair = Pair(connect=True)
    assert (pair.client.stream_limit, pair.client.has_connect) == (LIMITS.streams, True)
    assert not Pair().client.has_connect
    kind, _, _, payload = next(frames_of(ServerEngine(LIMITS).data_to_send()))
    sent = dict(struct.iter_unpack("!HI", payload))
    assert kind == frames.SETTINGS
    assert (sent[3], sent[4], sent[6]) == (LIMITS.streams, STREAM_WINDOW, LIMITS.header_list)


def test_too_many_streams_are_refused() -> None:
    server = lone_server()
    heard = server.receive(b"".join(head(stream, *GET) for stream in range(1, 41, 2)))
    assert kinds(heard) == [HEAD] * LIMITS.streams
    refused = [
        payload for kind, _, _, payload in frames_of(server.data_to_send()) if kind == frames.RST_STREAM
    ]
    assert refused == [struct.pack("!I", REFUSED_STREAM)] * 10


# --- hostile peers


def test_oversized_header_list() -> None:
    """Beyond the advertised size it can be answered; a multiple of it ends the connection, with GOAWAY."""
    server = lone_server()
    fields = [*GET, *((b"x-%d" % i, bytes(100).replace(b"\0", b"y")) for i in range(40))]
    assert server.receive(head(1, *fields)) == [(OVERSIZED, 1, tuple(fields), True)]
    server.respond(1, [(b":status", b"431")], is_last=True)
    assert frames.HEADERS in [kind for kind, *_ in frames_of(server.data_to_send())]
    bomb = block((b"x", b"y" * 3000), first=0x40) + b"\xbe" * 1000
    heard = server.receive(frame(frames.HEADERS, block(*GET) + bomb, 3, END_HEADERS | frames.END_STREAM))
    assert kinds(heard) == [CLOSED]
    assert goaway_of(server) == (1, ENHANCE_YOUR_CALM)


def test_stream_begun_and_reset_in_one_read_is_not_reported() -> None:
    """Rapid Reset (CVE-2023-44487): such streams cost no request, and are counted."""
    server = lone_server()
    pairs = [head(stream, *GET) + rst(stream) for stream in (1, 5)]
    post = head(7, *POST, flags=END_HEADERS) + frame(frames.DATA, b"x", 7) + rst(7)
    heard = server.receive(pairs[0] + head(3, *GET) + pairs[1] + post)
    assert heard == [(HEAD, 3, tuple(GET), True)]
    assert server.resets == 3
    server.receive(rst(3))
    assert server.resets == 4


def test_rapid_reset_ends_the_connection() -> None:
    """In one read nothing is reported but the end; in many, after as many resets as are allowed."""
    server = lone_server()
    heard = server.receive(b"".join(head(stream, *GET) + rst(stream) for stream in range(1, 60_001, 2)))
    assert kinds(heard) == [CLOSED]
    assert goaway_of(server)[1] == ENHANCE_YOUR_CALM
    assert server.receive(head(60_001, *GET)) == []
    server = lone_server()
    count = 0
    while not server.is_closed:
        server.receive(head(2 * count + 1, *GET))
        server.receive(rst(2 * count + 1))
        count += 1
    assert count == LIMITS.resets + 1


def test_a_flood_costs_no_more_than_a_piece_of_a_read() -> None:
    server = lone_server()
    server.receive(b"".join(head(stream, *GET) + rst(stream) for stream in range(1, 60_001, 2)))
    assert LIMITS.resets < server.resets <= PIECE // len(head(1, *GET) + rst(1)) + 1


FLOODS = {
    "ping": frame(frames.PING, b"12345678"),
    "settings": frame(frames.SETTINGS),
    "window of the connection": frame(frames.WINDOW_UPDATE, b"\0\0\0\1"),
    "window of a stream": frame(frames.WINDOW_UPDATE, b"\0\0\0\1", 1),
    "empty data": frame(frames.DATA, b"", 1),
    "priority": frame(frames.PRIORITY, b"\0\0\0\0\1", 1),
    "priority update": frame(16, b"\0\0\0\1u=1"),
    "unknown": frame(200, b"x"),
}


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("kind", FLOODS)
def test_floods(kind: str, is_at_once: bool) -> None:
    """ENHANCE_YOUR_CALM, in one read or in many; up to the limit the frames are accepted, more after a tick."""
    server = lone_server()
    server.receive(head(1, *POST, flags=END_HEADERS))
    for _ in range(1 if is_at_once else LIMITS.idle_frames - 2):
        heard = server.receive(FLOODS[kind] * (LIMITS.idle_frames - 2 if is_at_once else 1))
        assert heard == [] or kinds(heard) in ([DATA] * len(heard), [SETTINGS] * len(heard))
        server.data_to_send()
    assert not server.is_closed
    heard = []
    while not server.is_closed:
        heard = server.receive(FLOODS[kind] * (10_000 if is_at_once else 1))
    assert kinds(heard) == [CLOSED]
    assert heard[0][2][0] == ENHANCE_YOUR_CALM
    assert goaway_of(server) == (1, ENHANCE_YOUR_CALM)


def test_progress_is_no_flood() -> None:
    """A message and each part of one allow further frames, and a tick begins the count anew."""
    server = lone_server()
    server.receive(
        frame(frames.SETTINGS, struct.pack("!HI", 4, 2**31 - 1)) + FLOODS["window of the connection"]
    )
    server.receive(frame(frames.WINDOW_UPDATE, struct.pack("!I", 2**30)))
    pings = FLOODS["ping"] * (LIMITS.idle_frames - 5)
    server.receive(pings + head(1, *POST, flags=END_HEADERS) + FLOODS["ping"] * FRAMES_PER_HEAD)
    for _ in range(100):
        server.receive(FLOODS["ping"] + frame(frames.DATA, b"x", 1))
        server.data_to_send()
    server.tick()
    server.receive(pings)
    assert not server.is_closed
    server.tick()
    server.respond(1, OK, is_last=False)
    for _ in range(200):
        server.send_data(1, bytes(1000), is_last=False)
        server.data_to_send()
        server.receive(FLOODS["window of the connection"] + FLOODS["window of a stream"])
    assert not server.is_closed


def test_flood_of_windows_of_one_byte() -> None:
    """Each byte sent does not count as progress."""
    server = lone_server()
    server.receive(frame(frames.SETTINGS, struct.pack("!HI", 4, 0)) + head(1, *GET))
    server.respond(1, OK, is_last=False)
    server.send_data(1, bytes(10_000), is_last=True)
    server.data_to_send()
    count = 0
    while not server.is_closed and count < 5000:
        server.receive(FLOODS["window of a stream"])
        server.data_to_send()
        count += 1
    assert count <= LIMITS.idle_frames + FRAMES_PER_HEAD + FRAMES_PER_PART + 1 + count // BYTES_PER_FRAME


ENEMIES = {
    "pings between bytes": (FLOODS["ping"] * 20 + frame(frames.DATA, b"x", 1), 1),
    "pings between requests": (FLOODS["ping"] * 20, FRAMES_PER_HEAD),
    "windows between bytes": (FLOODS["window of a stream"] * 20 + frame(frames.DATA, b"x", 1), 1),
}


@pytest.mark.parametrize("kind", ENEMIES)
def test_progress_allows_no_multiple_of_itself(kind: str) -> None:
    """Frames without progress stay bounded by the limit and by what progress allows."""
    flood, allowed = ENEMIES[kind]
    server = lone_server()
    server.receive(head(1, *POST, flags=END_HEADERS))
    rounds = 0
    while not server.is_closed:
        rounds += 1
        server.receive(flood + head(2 * rounds + 1, *GET) * (allowed == FRAMES_PER_HEAD))
        server.respond(2 * rounds + 1, OK, is_last=True)
        server.data_to_send()
    assert (rounds - 2) * (20 - allowed) <= LIMITS.idle_frames + FRAMES_PER_HEAD


def window(stream: int, size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, struct.pack("!I", size), stream)


FIVE = (*POST, (b"content-length", b"5"))
FAULTS: dict[str, Callable[[int], tuple[bytes, bytes]]] = {
    "too long": lambda at: (head(at, *FIVE, flags=END_HEADERS), frame(frames.DATA, bytes(10), at)),
    "too short": lambda at: (head(at, *FIVE, flags=END_HEADERS), frame(frames.DATA, b"x", at, 1)),
    "malformed trailers": lambda at: (head(at, *POST, flags=END_HEADERS), head(at, (b"x", b"a\r\nb"))),
    "malformed head": lambda at: (b"", head(at, *GET, (b"X", b"y"))),
    "reset": lambda at: (head(at, *GET), rst(at)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_streams_that_end_by_the_clients_fault_are_counted(fault: str) -> None:
    """Whichever side resets them (CVE-2025-8671): as many as the client may reset itself."""
    server = lone_server()
    count = 0
    while not server.is_closed and count < 1000:
        begin, end = FAULTS[fault](2 * count + 1)
        server.receive(begin)
        server.data_to_send()
        server.receive(end)
        count += 1
    assert count == server.resets == LIMITS.resets + 1
    assert goaway_of(server)[1] == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("code", [NO_ERROR, PROTOCOL_ERROR, CANCEL])
def test_streams_that_are_reset_from_here_are_not_counted(code: int) -> None:
    server = lone_server()
    for stream in range(1, 1001, 2):
        server.receive(head(stream, *POST, flags=END_HEADERS))
        server.reset(stream, code)
        server.data_to_send()
        server.receive(window(stream, 1) * (stream % 10 == 1))
        server.reset(stream, code)  # again, when it is no more
        server.tick()
    assert (server.is_closed, server.resets) == (False, 0)


@pytest.mark.parametrize("is_server", [True, False])
def test_small_frames_of_a_read_are_one_event_for_each_stream(is_server: bool) -> None:
    """Streams in turns, too; the order within a stream stays."""
    engine: Engine = lone_server() if is_server else lone_client()
    if isinstance(engine, ClientEngine):
        engine.request(GET, is_last=True)
        engine.data_to_send()
    begin = POST if is_server else OK
    mixed = b"".join(frame(frames.DATA, b"%d" % stream, stream) for _ in range(20) for stream in (1, 3))
    ends = frame(frames.DATA, b"!", 1, 1) + head(3, (b"a", b"b"))
    heads = [head(stream, *begin, flags=END_HEADERS) for stream in (1, 3)]
    assert engine.receive(b"".join(heads) + mixed + ends) == [
        (HEAD, 1, tuple(begin), False),
        (HEAD, 3, tuple(begin), False),
        (DATA, 1, b"1" * 20 + b"!", True),
        (DATA, 3, b"3" * 20, False),
        (TRAILERS, 3, ((b"a", b"b"),), True),
    ]


@pytest.mark.parametrize("fields", [[(b"X", b"y")], [(b"connection", b"close")], [(b"x", b"a\r\nb: c")]])
def test_malformed_message_ends_one_stream(fields: list[tuple[bytes, bytes]]) -> None:
    """The request is not reported, the response is a reset; other streams go on (RFC 9113 § 8.1.1)."""
    server = lone_server()
    heard = server.receive(head(1, *GET, *fields) + head(3, *GET))
    assert heard == [(HEAD, 3, tuple(GET), True), (RESET, 1, PROTOCOL_ERROR, False)]
    assert (frames.RST_STREAM, 1) in [(kind, stream) for kind, stream, *_ in frames_of(server.data_to_send())]
    client = lone_client()
    assert client.receive(head(1, *OK, *fields)) == [(RESET, 1, PROTOCOL_ERROR, False)]
    assert not client.is_closed


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", PROTOCOL_ERROR),
        (PREFACE + frame(frames.PING, b"12345678"), PROTOCOL_ERROR),
        (PREFACE + frame(frames.SETTINGS) + frame(frames.DATA, b"x", 1), PROTOCOL_ERROR),
        (PREFACE + frame(frames.SETTINGS) + frame(frames.HEADERS, b"\xff" * 5, 1, END_HEADERS), 9),
        (PREFACE + frame(frames.SETTINGS) + b"\xff\xff\xff\0\0\0\0\0\1", 6),
        (PREFACE + frame(frames.SETTINGS) + frame(frames.WINDOW_UPDATE, b"\x7f\xff\xff\xff"), 3),
    ],
)
def test_violation_ends_the_connection(data: bytes, code: int) -> None:
    """One CLOSED event with a reason, and GOAWAY with the code; nothing is read afterwards."""
    server = ServerEngine(LIMITS)
    server.data_to_send()
    events = server.receive(data)
    assert kinds(events)[-1] == CLOSED
    assert events[-1][2][0] == code
    assert events[-1][2][1]
    assert goaway_of(server)[1] == code
    assert (server.receive(PREFACE), server.data_to_send(), server.events()) == ([], b"", [])


@pytest.mark.parametrize("peer_of", [lone_server, lone_client])
def test_violation_is_reported_once(peer_of: Callable[[], Engine]) -> None:
    """With its own code, whatever comes after a GOAWAY that has waited for the transport."""
    flow_control_error = 3
    engine = peer_of()
    engine.is_blocked = True
    assert engine.receive(frame(frames.WINDOW_UPDATE, b"\x7f\xff\xff\xff")) == []
    assert goaway_of(engine)[1] == flow_control_error
    heard = engine.receive(FLOODS["ping"])
    assert (kinds(heard), heard[0][2][0]) == ([CLOSED], flow_control_error)
    assert engine.receive(FLOODS["ping"]) == []


def test_responses_before_a_violation_are_reported() -> None:
    client = lone_client()
    heard = client.receive(head(1, *OK) + frame(frames.DATA, b"x", 5))
    assert kinds(heard) == [HEAD, CLOSED]


def test_pushed_stream_is_a_violation() -> None:
    client = lone_client()
    client.receive(frame(frames.SETTINGS, flags=frames.ACK))
    promise = frame(frames.PUSH_PROMISE, struct.pack("!I", 2) + block(*GET), 1, END_HEADERS)
    assert kinds(client.receive(promise)) == [CLOSED]
    assert goaway_of(client)[1] == PROTOCOL_ERROR
