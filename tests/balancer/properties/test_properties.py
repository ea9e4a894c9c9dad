"""Any legal message is forwarded as sent, however its bytes are split. RFC 9112 §§ 2–7.

The output is parsed by h11 and a lenient reader, never by the balancer's own parser.
"""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from tests.support import messages
from tests.support.example_counts import examples
from tests.support.messages import Fields, Sent, pieces
from tests.support.readers import Read, requests_seen, responses_seen
from tests.support.wireless import Peer, Wireless

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ADDED_TO_REQUESTS = frozenset(
    (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"via", b"x-request-id")
)

HOST = frozenset((b"host",))


def without(names: frozenset[bytes], fields: Fields) -> Fields:
    return [(name, value) for name, value in fields if name.lower() not in names]


def worker_requests(stage: Wireless) -> list[Read]:
    return requests_seen(bytes(stage.workers[0].received)) if stage.workers else []


def forward(stage: Wireless, client: Peer, sent: Sent, cut: list[bytes]) -> Read:
    """Send a request in the pieces `cut` and return what the worker receives."""
    before = len(worker_requests(stage))
    for piece in cut:
        client.send(piece)
        stage.turn()
    seen = worker_requests(stage)
    assert len(seen) == before + 1, bytes(client.received)
    return seen[-1]


def check_forwarded(read: Read, sent: Sent) -> None:
    """Check line, fields, body and trailers."""
    assert read.is_whole
    assert read.line == sent.line
    fields = without(ADDED_TO_REQUESTS, read.fields)
    if b"://" in sent.data.partition(b"\r\n")[0]:  # its authority replaces Host (RFC 9112 § 3.2.2)
        assert fields[0] == (b"Host", b"example.org")
        assert without(HOST, fields) == without(HOST, sent.fields)
    else:
        assert fields == sent.fields
    assert read.body == sent.body
    assert (read.trailers or []) == sent.trailers


@examples(15)
@given(st.data())
def test_requests_are_forwarded_unchanged_however_split(data: st.DataObject) -> None:
    """Fields keep order and case, the body is exact; several requests share one connection."""
    with Wireless() as stage:
        client = stage.client()
        methods: list[bytes] = []
        for _ in range(data.draw(st.integers(1, 3))):
            sent = data.draw(messages.requests())
            check_forwarded(forward(stage, client, sent, data.draw(pieces(sent.data))), sent)
            methods.append(sent.line[0])
            stage.workers[0].send(ANSWER if methods[-1] != b"HEAD" else ANSWER[:-2])
            stage.turn()
        assert len(responses_seen(bytes(client.received), methods, is_ended=False)) == len(methods)
        assert len(stage.workers) == 1
        stage.leave()


@examples(15)
@given(st.data())
def test_pipelined_requests_are_forwarded_unchanged(data: st.DataObject) -> None:
    """Split anywhere in the stream; each is forwarded only after the response to the one before."""
    sent = data.draw(st.lists(messages.requests(), min_size=1, max_size=4))
    with Wireless() as stage:
        client = stage.client()
        for piece in data.draw(pieces(b"".join(one.data for one in sent))):
            client.send(piece)
            stage.turn()
        for number, one in enumerate(sent, 1):
            seen = worker_requests(stage)
            assert len(seen) == number
            check_forwarded(seen[-1], one)
            stage.workers[0].send(ANSWER if one.line[0] != b"HEAD" else ANSWER[:-2])
            stage.turn()
        methods = [one.line[0] for one in sent]
        assert len(responses_seen(bytes(client.received), methods, is_ended=False)) == len(sent)
        stage.leave()


@examples(15)
@given(st.data())
def test_responses_are_forwarded_unchanged_however_split(data: st.DataObject) -> None:
    """Status, reason, fields in order and case, exact body, and interim responses (RFC 9110 § 15.2)."""
    method = data.draw(st.sampled_from((b"GET", b"HEAD", b"POST")))
    sent = data.draw(messages.responses(method))
    with Wireless() as stage:
        client = stage.client()
        client.send(method + b" / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        stage.turn()
        (worker,) = stage.workers
        for piece in data.draw(pieces(sent.data)):
            worker.send(piece)
            stage.turn()
        if sent.ends_with_connection:
            worker.end()
            stage.turn()
        event(f"{sent.line[1]!r} until close {sent.ends_with_connection}")
        *interim, final = responses_seen(bytes(client.received), [method], client.ending == "end")
        assert len(interim) == sent.data.count(b"HTTP/1.1 10")
        assert final.is_whole
        assert final.line == sent.line
        assert without(frozenset((b"transfer-encoding",)), final.fields) == sent.fields
        assert final.body == sent.body
        assert (final.trailers or []) == sent.trailers
        assert client.ending is None
        stage.leave()
