"""Damaged messages must not smuggle a request or a response past the balancer. RFC 9112 § 11.2.

The balancer may reject anything. What it writes must be the same messages to a strict reader and to two lenient ones,
not more than it has begun, each starting where it began one.
"""

from __future__ import annotations

from hypothesis import event, example, given
from hypothesis import strategies as st

from policies.facts import OutcomeKind
from tests.support import messages
from tests.support.damage import Damage, damaged
from tests.support.example_counts import examples
from tests.support.messages import SMUGGLED, SMUGGLED_RESPONSE, pieces
from tests.support.readers import Lenient, Read, requests_seen, responses_seen
from tests.support.wireless import Peer, Wireless

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

damages = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 400), st.integers(0, 80)), min_size=1, max_size=4
)


class AnsweringWorker:
    """A worker that answers each complete request."""

    def __init__(self) -> None:
        self._answered = 0

    def __call__(self, worker: Peer) -> None:
        reader = Lenient(bytes(worker.received[self._answered :]), takes_last=False)
        for request in reader.requests():
            if request.is_whole:
                worker.send(ANSWER[:-2] if request.line[0] == b"HEAD" else ANSWER)
        self._answered += reader.read


def send_through(cut: list[bytes]) -> tuple[Wireless, Peer]:
    """A client sends these pieces and then ends."""
    stage = Wireless()
    stage.worker_script = AnsweringWorker()
    with stage:
        client = stage.client()
        for piece in cut:
            client.send(piece)
            stage.turn()
        client.end()
        stage.turn()
    return stage, client


def forwarded(stage: Wireless) -> list[Read]:
    """The requests at the workers, checked against those that the balancer has sent."""
    everything: list[Read] = []
    for worker in stage.workers:
        seen = requests_seen(bytes(worker.received))
        assert {request.start for request in seen} <= {*worker.writes}
        everything += seen
    router = stage.cluster.router
    answered = sum(state.outcomes[OutcomeKind.OK] for state in router.states)
    assert answered <= len(everything) <= router.routed
    return everything


@examples(25)
@given(st.lists(messages.requests(), min_size=1, max_size=3), damages, st.data())
def test_damaged_requests_smuggle_nothing(
    sent: list[messages.Sent], damages: list[Damage], data: st.DataObject
) -> None:
    """Insertions, deletions, repeated fields, two lengths, damaged chunks, bare CR and LF, split anywhere."""
    stage, _ = send_through(data.draw(pieces(damaged(b"".join(one.data for one in sent), damages))))
    event(f"{len(forwarded(stage))} of {len(sent)}")


@examples(25)
@given(messages.requests(), st.integers(0, 80), st.integers(0, 400), st.data())
def test_body_is_never_the_next_request(
    sent: messages.Sent, token: int, where: int, data: st.DataObject
) -> None:
    """Bodies contain whole requests; one damage to the head, which keeps the body's bytes, must not release them."""
    head, separator, body = sent.data.partition(b"\r\n\r\n")
    damaged_request = damaged(head, [(0, where, token)]) + separator + body
    stage, _ = send_through(data.draw(pieces(damaged_request)))
    seen = forwarded(stage)
    if SMUGGLED in sent.body and sent.data.endswith(sent.body):  # framed by length: no byte of it is framing
        assert not any(request.line[1] == b"/smuggled" for request in seen[:1])
    event(f"{len(seen)} forwarded")


@examples(25)
@given(st.sampled_from((b"GET", b"HEAD", b"POST")), damages, st.data())
def test_damaged_responses_smuggle_nothing(method: bytes, damages: list[Damage], data: st.DataObject) -> None:
    """One request has one final response, from the worker or from the balancer; excess bytes are dropped."""
    sent = data.draw(messages.responses(method))
    with Wireless() as stage:
        client = stage.client()
        client.send(method + b" / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        stage.turn()
        (worker,) = stage.workers
        for piece in data.draw(pieces(damaged(sent.data, damages))):
            worker.send(piece)
            stage.turn()
        worker.end()
        stage.turn()
        client.send(b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
        stage.turn()
        methods = [method, b"GET"][: stage.cluster.router.routed]
        for second in stage.workers[1:]:
            second.send(ANSWER)
        stage.turn()
        seen = responses_seen(bytes(client.received), methods, client.ending == "end")
        assert {response.start for response in seen} <= {*client.writes}
        finals = [response for response in seen if response.line[1] >= b"2"]
        assert len(finals) <= len(methods)
        if len(finals) == 2 and finals[0].is_whole:
            assert finals[1].body == b"ok"
        event(f"{len(finals)} responses")


@examples(25)
@given(messages.responses(b"GET"), st.data())
@example(messages.Sent(ANSWER, (), [], b"", []), None)
def test_bytes_after_a_response_are_dropped(sent: messages.Sent, data: st.DataObject | None) -> None:
    """RFC 9112 § 6.3: the next request of the client gets its own response."""
    if sent.ends_with_connection:
        return
    with Wireless() as stage:
        client = stage.client()
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        stage.turn()
        for piece in (
            data.draw(pieces(sent.data + SMUGGLED_RESPONSE)) if data else [sent.data + SMUGGLED_RESPONSE]
        ):
            stage.workers[0].send(piece)
            stage.turn()
        client.send(b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
        stage.turn()
        assert len(stage.workers) == 2
        stage.workers[1].send(ANSWER)
        stage.turn()
        seen = responses_seen(bytes(client.received), [b"GET", b"GET"], is_ended=False)
        finals = [response for response in seen if response.line[1] >= b"2"]
        assert [response.line[2] for response in finals][1:] == [b"OK"]
        assert len(finals) == 2


@examples(25)
@given(messages.requests(), st.data())
def test_truncated_request_is_never_complete(sent: messages.Sent, data: st.DataObject) -> None:
    """RFC 9112 § 8."""
    part = sent.data[: data.draw(st.integers(0, len(sent.data) - 1))]
    stage, _ = send_through(data.draw(pieces(part)))
    assert not any(request.is_whole for request in forwarded(stage))


@examples(25)
@given(st.sampled_from((b"GET", b"POST")), st.sampled_from((b"1.0", b"1.1")), st.booleans(), st.data())
def test_truncated_response_is_never_complete(
    method: bytes, version: bytes, is_reset: bool, data: st.DataObject
) -> None:
    """The client gets the balancer's 502, or sees that the response is not whole (RFC 9112 § 8)."""
    sent = data.draw(messages.responses(method).filter(lambda sent: not sent.ends_with_connection))
    part = sent.data[: data.draw(st.integers(0, len(sent.data) - 1))]
    with Wireless(retries=0) as stage:
        client = stage.client()
        client.send(b"%b / HTTP/%b\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % (method, version))
        stage.turn()
        for piece in data.draw(pieces(part)):
            stage.workers[0].send(piece)
            stage.turn()
        (stage.workers[0].vanish if is_reset else stage.workers[0].end)()
        stage.turn()
        seen = responses_seen(bytes(client.received), [method], client.ending == "end")
        finals = [response for response in seen if response.line[1] >= b"2"]
        whole = [response for response in finals if response.is_whole]
        assert all(response.line[1:] == (b"502", b"Bad Gateway") for response in whole)
        assert whole or client.ending is not None
