"""Propagation of W3C Trace Context: the traceparent and tracestate that a worker receives.

The table follows the cases of the W3C's own test suite (github.com/w3c/trace-context, test/test.py), Level 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from random import Random

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from balancer.config.schema.limits import Limits
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_reader import RequestReader
from balancer.http.h1.traced_head import TracedRequest
from balancer.tracing.identifiers import BATCH, Identifiers
from balancer.tracing.tracing import Tracing

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = b"00f067aa0ba902b7"
PARENT = b"traceparent: 00-%b-%b-01" % (TRACE, SPAN)
NO_SAMPLES = Tracing(trusts_all=True, sample=0.0)

PLAIN = (b"Host: a", b"Accept: */*")


@dataclass(frozen=True)
class Context:
    """The trace context of a head that a worker receives."""

    trace_id: bytes
    span_id: bytes
    flags: bytes
    states: tuple[bytes, ...]


def reader(tracing: Tracing = NO_SAMPLES) -> RequestReader:
    """A client connection's reader."""
    client = Client(b"192.0.2.1", b"a:80", tracing=tracing)
    return RequestReader(client, Limits(), map(b"id-%x".__mod__, count()).__next__)


def request_of(
    lines: tuple[bytes, ...], by: RequestReader | None = None, start: bytes = b"GET / HTTP/1.1"
) -> TracedRequest:
    request = (by or reader()).read(b"\r\n".join((start, *lines, b"", b"")))
    assert isinstance(request, TracedRequest)
    return request


def context_of(head: bytes) -> Context:
    """Parse the head's trace context; there must be exactly one traceparent."""
    [parent] = re.findall(rb"(?im)^traceparent:(.*)\r$", head)
    match = re.fullmatch(rb" 00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])", parent)
    assert match, parent
    return Context(match[1], match[2], match[3], tuple(re.findall(rb"(?im)^tracestate: (.*)\r$", head)))


def sent(*lines: bytes) -> Context:
    """What the worker gets for these fields, from a client that is believed."""
    return context_of(request_of((*PLAIN, *lines)).head)


CONTINUED = {
    "usual": PARENT,
    "name in other cases": PARENT.replace(b"traceparent", b"TrAcEpArEnT"),
    "Go's spelling": PARENT.replace(b"traceparent", b"Traceparent"),
    "no white space": PARENT.replace(b": ", b":"),
    "white space around": PARENT.replace(b": ", b": \t ") + b" \t",
    "not sampled": PARENT[:-2] + b"00",
    "random": PARENT[:-2] + b"03",
    "reserved flags": PARENT[:-2] + b"fd",
    "future version": PARENT.replace(b" 00-", b" cc-"),
    "future version with more fields": PARENT.replace(b" 00-", b" cc-") + b"-what-the-future-will-be-like",
    "last version": PARENT.replace(b" 00-", b" fe-"),
}


@pytest.mark.parametrize("line", CONTINUED.values(), ids=CONTINUED.keys())
def test_valid_parent_is_continued(line: bytes) -> None:
    """The worker gets the trace id, another span id, version 00, and the two flags that are defined."""
    context = sent(line)
    assert context.trace_id == TRACE
    assert context.span_id != SPAN
    flags = int(re.split(rb"-", line.strip())[3][:2], 16)
    assert int(context.flags, 16) == flags & 3


RESTARTED = {
    "none": (),
    "another name": (PARENT.replace(b"traceparent", b"trace-parent"),),
    "two": (PARENT, PARENT.replace(b"4bf", b"5bf")),
    "two that are equal": (PARENT, PARENT),
    "two in different cases": (PARENT, PARENT.upper().replace(b"TRACE", b"Trace", 1)),
    "two in one field": (PARENT + b", " + PARENT[13:],),
    "empty": (b"traceparent:",),
    "upper case": (PARENT.replace(TRACE, TRACE.upper()),),
    "upper-case span": (PARENT.replace(SPAN, SPAN.upper()),),
    "trace id of zeros": (PARENT.replace(TRACE, b"0" * 32),),
    "span id of zeros": (PARENT.replace(SPAN, b"0" * 16),),
    "trailing dot": (PARENT + b".",),
    "more fields in version 00": (PARENT + b"-00",),
    "future version, no hyphen": (PARENT.replace(b" 00-", b" cc-") + b".x",),
    "forbidden version": (PARENT.replace(b" 00-", b" ff-"),),
    "bad version": (PARENT.replace(b" 00-", b" .0-"),),
    "long version": (PARENT.replace(b" 00-", b" 000-"),),
    "short version": (PARENT.replace(b" 00-", b" 0-"),),
    "bad trace id": (PARENT.replace(TRACE, b"." + TRACE[1:]),),
    "long trace id": (PARENT.replace(TRACE, TRACE + b"1"),),
    "short trace id": (PARENT.replace(TRACE, TRACE[1:]),),
    "bad span id": (PARENT.replace(SPAN, SPAN[:-1] + b"."),),
    "long span id": (PARENT.replace(SPAN, SPAN + b"1"),),
    "short span id": (PARENT.replace(SPAN, SPAN[1:]),),
    "bad flags": (PARENT[:-2] + b"0.",),
    "long flags": (PARENT + b"1",),
    "short flags": (PARENT[:-1],),
    "hyphen in the trace id": (PARENT.replace(TRACE, b"-" + TRACE[1:]),),
    "hyphens moved": (PARENT.replace(b"-00f067aa0ba902b7", b"0-0f067aa0ba902b7"),),
}


@pytest.mark.parametrize("lines", RESTARTED.values(), ids=RESTARTED.keys())
def test_invalid_parent_counts_as_absent(lines: tuple[bytes, ...]) -> None:
    """A new trace with a random id begins; the tracestate is dropped with the traceparent (§ 3.3)."""
    context = sent(b"tracestate: a=1", *lines)
    assert context.trace_id not in (TRACE, b"0" * 32)
    assert context.flags == b"02"
    assert context.states == ()


MEMBERS_32 = b",".join(b"k%d=1" % number for number in range(32))
CHARACTERS = b"a_-*/@9=!\"#$%&'()*+-./:;<>?@[\\]^_`{|}~"

STATES: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "one": ((b"tracestate: foo=1,bar=2",), b"foo=1,bar=2"),
    "other case": ((b"TRACESTATE: foo=1",), b"foo=1"),
    "several are combined in order": (
        (b"tracestate: foo=1,bar=2", b"Tracestate: rojo=1", b"tracestate: baz=3"),
        b"foo=1,bar=2,rojo=1,baz=3",
    ),
    "white space": ((b"tracestate: foo=1 \t , \t bar=2,\t ",), b"foo=1,bar=2"),
    "space within a value": ((b"tracestate: foo= a b",), b"foo= a b"),
    "empty ones are dropped": ((b"tracestate:", b"tracestate: foo=1", b"tracestate: ,"), b"foo=1"),
    "only empty": ((b"tracestate:",), b""),
    "tenant and system": ((b"tracestate: 0t@x=1,foo@=2,foo@@bar=3",), b"0t@x=1,foo@=2,foo@@bar=3"),
    "all characters": ((b"tracestate: " + CHARACTERS,), CHARACTERS),
    "equal keys stay": ((b"tracestate: foo=1,foo=2",), b"foo=1,foo=2"),
    "32 members": ((b"tracestate: " + MEMBERS_32,), MEMBERS_32),
    "33 members": ((b"tracestate: " + MEMBERS_32 + b",k32=1",), b""),
    "33 members in two fields": ((b"tracestate: a=1", b"tracestate: " + MEMBERS_32), b""),
    "longest key and value": (
        (b"tracestate: " + b"z" * 256 + b"=" + b"v" * 256,),
        b"z" * 256 + b"=" + b"v" * 256,
    ),
    "key too long": ((b"tracestate: foo=1," + b"z" * 257 + b"=1",), b""),
    "value too long": ((b"tracestate: foo=1,z=" + b"v" * 257,), b""),
    "upper-case key": ((b"tracestate: FOO=1",), b""),
    "space before the equals sign": ((b"tracestate: foo =1",), b""),
    "key begins with @": ((b"tracestate: @foo=1,bar=2",), b""),
    "two equals signs": ((b"tracestate: foo=bar=baz",), b""),
    "no value": ((b"tracestate: foo=,bar=3",), b""),
    "no key": ((b"tracestate: =1",), b""),
    "not ASCII": ((b"tracestate: foo=\xc3\xa4",), b""),
    "another name": ((b"trace-state: foo=1",), b""),
}


@pytest.mark.parametrize(("lines", "expected"), STATES.values(), ids=STATES.keys())
@pytest.mark.parametrize("is_before", [True, False])
def test_tracestate(lines: tuple[bytes, ...], expected: bytes, is_before: bool) -> None:
    """An invalid one is discarded as a whole and leaves the traceparent valid, wherever it stands."""
    context = sent(*lines, PARENT) if is_before else sent(PARENT, *lines)
    assert context.trace_id == TRACE
    assert context.states == ((expected,) if expected else ())


def test_other_fields_are_untouched() -> None:
    """They keep their bytes and their order."""
    lines = (b"Host: a", b"X-First: 1", PARENT, b"accept:  */*", b"tracestate: a=1", b"X-Last: tracestate: b")
    head = request_of(lines).head
    assert head.startswith(
        b"GET / HTTP/1.1\r\nHost: a\r\nX-First: 1\r\naccept:  */*\r\nX-Last: tracestate: b\r\nX-Forwarded-For:"
    )
    assert head.endswith(b"-01\r\n\r\n")


def test_same_fields_with_another_parent_are_parsed_once() -> None:
    """A traceparent differs from request to request, and must not cost the parsing of all other fields."""
    by = reader()
    first = request_of((*PLAIN, PARENT), by)
    second = request_of((PLAIN[0], PARENT.replace(b"-01", b"-00"), PLAIN[1]), by)
    assert first.fields is second.fields


@pytest.mark.parametrize(
    "start", [b"GET http://b/ HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET / HTTP/1.0", b"POST / HTTP/1.1"]
)
def test_every_form_of_request(start: bytes) -> None:
    body = (b"Content-Length: 0",) if start.startswith(b"POST") else ()
    head = request_of((*PLAIN, PARENT, b"tracestate: a=1", *body), start=start).head
    assert (context_of(head).trace_id, context_of(head).states) == (TRACE, (b"a=1",))


def test_no_other_line_is_taken_for_a_value() -> None:
    """A request whose first 55 bytes behind the name hold further fields, on a connection that has seen a traceparent
    at that place: a field that the cache hides would be smuggled past the framing."""
    by = reader()
    fields = (b"Host: a", PARENT, b"X: 1")
    for smuggled in (b"Content-Length: 1", b"Transfer-Encoding: chunked"):
        request_of(fields, by)
        value = b"00-1\r\n" + smuggled + b"\r\nY: "
        request = request_of((b"Host: a", b"traceparent: " + value.ljust(55, b"y"), b"X: 1"), by)
        assert request.fields.has_body
        assert b"\r\n" + smuggled + b"\r\n" in request.head
        by = reader()


def test_value_ends_with_its_line() -> None:
    """Also where the last fields are those around the first 55 bytes of a longer value."""
    by = reader()
    request_of((b"Host: a", PARENT), by)
    request_of((b"Host: ab",), by)
    request = request_of((b"Host: a", PARENT + b"b"), by)
    assert context_of(request.head).trace_id != TRACE
    assert b"\r\nHost: a\r\n" in request.head


LINES = (
    *(b"X: 1", b"X: 12", b"Y: " + b"y" * 67, b"TE: trailers", b"Connection: TE", b"tracestate: a=1"),
    *(PARENT, PARENT.replace(TRACE, b"6" * 32), PARENT + b"12", PARENT[:-2], PARENT.replace(b"t", b"T", 1)),
    *(PARENT.replace(b": ", b":"), PARENT[:40] + b": " + PARENT[40:], PARENT.replace(b"parent", b"state")),
)


@pytest.mark.parametrize("seed", range(20))
def test_cache_changes_nothing(seed: int) -> None:
    """Requests on one connection are what they are on connections of their own, and each has its own ids."""
    rng, by = Random(seed), reader()
    lines: list[bytes] = []
    spans, own = [], []
    for _ in range(100):
        if rng.random() < 0.7 and lines:
            lines[rng.randrange(len(lines))] = rng.choice(LINES)
        else:
            lines = rng.choices(LINES, k=rng.randrange(5))
        alone, beside = request_of((b"Host: a", *lines)), request_of((b"Host: a", *lines), by)
        assert without_ids(beside) == without_ids(alone)
        context = context_of(beside.head)
        spans.append(context.span_id)
        own += [] if beside.parent else [context.trace_id]
    assert (len({*spans}), len({*own})) == (len(spans), len(own))


def without_ids(request: TracedRequest) -> tuple[object, ...]:
    """Head and fields, with what is random left out."""
    context = context_of(request.head)
    trace_id = context.trace_id if request.parent else b""
    head = request.head.replace(context.trace_id, b"").replace(context.span_id, b"")
    return (
        head,
        trace_id,
        request.parent,
        request.tracestate,
        request.fields.has_body,
        request.fields.keep_alive,
    )


def test_further_attempts_have_spans_of_their_own() -> None:
    request = request_of((*PLAIN, PARENT))
    heads = [request.head, request.another_head(), request.another_head()]
    assert len({context_of(head).span_id for head in heads}) == 3
    assert {context_of(head).trace_id for head in heads} == {TRACE}
    assert len({head.rpartition(b"\r\n" + PARENT[:12])[0] for head in heads}) == 1


def test_without_tracing_fields_pass_unchanged() -> None:
    client = Client(b"192.0.2.1", b"a:80")
    request = RequestReader(client, Limits(), lambda: b"id").read(
        b"\r\n".join((b"GET / HTTP/1.1", *PLAIN, PARENT, b"tracestate: \xff", b"", b""))
    )
    assert isinstance(request, Request)
    assert b"\r\n" + PARENT + b"\r\ntracestate: \xff\r\n" in request.head
    assert request.another_head() == request.head


# --- ids and sampling


def test_request_id_is_the_trace_id() -> None:
    """It leads from the access log to the trace; requests of one continued trace still have different ones."""
    by = reader()
    new = request_of(PLAIN, by)
    assert new.id == context_of(new.head).trace_id
    assert b"\r\nX-Request-ID: " + new.id + b"\r\n" in new.head
    first, second = request_of((*PLAIN, PARENT), by), request_of((*PLAIN, PARENT), by)
    assert first.id == TRACE + b"-" + context_of(first.head).span_id
    assert first.id != second.id
    assert request_of((*PLAIN, PARENT, b"X-Request-ID: mine"), by).id == b"mine"


def test_ids_of_zeros_are_not_used() -> None:
    """They are invalid, and nothing else makes sure that chance draws none."""
    calls = count()

    def randomness(size: int) -> bytes:
        return bytes(8) + b"\x01" * (size - 8) if next(calls) % 2 == 0 else b"\x22" * size

    ids = Identifiers(randomness)
    assert {ids.trace() for _ in range(2 * BATCH)} == {b"2" * 32}
    assert {ids.span() for _ in range(2 * BATCH)} == {b"2" * 16}


def test_ids_are_unique_over_batches() -> None:
    ids = Identifiers()
    traces, spans = [ids.trace() for _ in range(3 * BATCH)], [ids.span() for _ in range(3 * BATCH)]
    assert (len(set(traces)), len(set(spans))) == (3 * BATCH, 3 * BATCH)
    assert all(re.fullmatch(rb"[0-9a-f]{32}", trace_id) for trace_id in traces)
    assert all(re.fullmatch(rb"[0-9a-f]{16}", span_id) for span_id in spans)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.01, 0.5, 0.999999, 1.0])
def test_sampling_agrees_with_opentelemetry(share: float) -> None:
    """For random ids, and those around the bound."""
    sampler, tracing, ids = TraceIdRatioBased(share), Tracing(trusts_all=True, sample=share), Identifiers()
    bound = round(share * 2**64)
    around = [number for number in (0, 1, bound - 1, bound, bound + 1, 2**64 - 1) if 0 <= number < 2**64]
    numbers = [(7 << 64) + number for number in around] + [int(ids.trace(), 16) for _ in range(2000)]
    for number in numbers:
        is_sampled = sampler.should_sample(None, number, "GET").decision is Decision.RECORD_AND_SAMPLE
        assert tracing.samples(b"%032x" % number) is is_sampled, hex(number)


def test_new_trace_is_sampled_by_its_share() -> None:
    """Its flag tells workers; a parent decides for its children whatever the share."""
    everything = reader(Tracing(trusts_all=True, sample=1.0))
    assert context_of(request_of(PLAIN, everything).head).flags == b"03"
    assert context_of(request_of((*PLAIN, PARENT[:-2] + b"00"), everything).head).flags == b"00"
    assert context_of(request_of((*PLAIN, PARENT)).head).flags == b"01"
