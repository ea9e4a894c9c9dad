"""Request heads with a trace context: the client's is validated and replaced by the balancer's own span.

A client's other fields mostly repeat from one request to the next, and its traceparent never does. It is taken out
before the fields are compared with the last ones, so that the cache of `RequestHeads` serves requests with one, too.
"""

from __future__ import annotations

from typing import Final

from balancer.http1.client import Client
from balancer.http1.fields import any_of, cut, found, lines_of
from balancer.http1.request_fields import RequestFields
from balancer.http1.request_head import Request, RequestHeads
from balancer.tracing.context import Parent, parent_of, state_of
from balancer.tracing.tracing import Tracing

_LINES: Final = lines_of(any_of(("traceparent", "tracestate")))

_NAME: Final = b"raceparent: "
"""The usual spellings of the field begin with t or T."""

_USUAL: Final = (b"\r\nt", b"\r\nT")

_BEGIN: Final = b"\r\ntraceparent: 00-"
_SPAN_AT: Final = -23
_AFTER_SPAN: Final = -7
"""Offsets of the span id from the end of a head, whose last line is the traceparent."""

_SAMPLED: Final = b"-03\r\n\r\n"
_UNSAMPLED: Final = b"-02\r\n\r\n"
"""Ends of a head with a new trace, whose id is random."""


class TracedRequest(Request):
    """A request whose `head` ends in a traceparent.

    `parent` is the client's span if its trace is continued, `tracestate` what the client has sent with it.
    """

    parent: Parent | None = None
    tracestate = b""

    def __init__(
        self,
        method: bytes,
        target: bytes,
        head: bytes,
        request_id: bytes,
        fields: RequestFields,
        raw: bytes,
        tracing: Tracing,
    ) -> None:
        super().__init__(method, target, head, request_id, fields, raw)
        self._tracing = tracing

    @property
    def trace_id(self) -> bytes:
        return self.head[-56:-24]

    @property
    def span_id(self) -> bytes:
        """The span that `head` names."""
        return self.head[_SPAN_AT:_AFTER_SPAN]

    @property
    def parent_id(self) -> bytes:
        """The client's span, b"" if the trace begins here."""
        return b"" if self.parent is None else self.parent.span_id

    @property
    def is_sampled(self) -> bool:
        return self.head[-5] & 1 == 1

    def another_head(self) -> bytes:
        """Return the head for a further attempt: it names a span of its own."""
        return self.head_naming(self._tracing.ids.span())

    def head_naming(self, span_id: bytes) -> bytes:
        """Return the head with another span id."""
        return b"".join((self.head[:_SPAN_AT], span_id, self.head[_AFTER_SPAN:]))


class TracedHeads(RequestHeads):
    """`RequestHeads` that continue the client's trace, if the client is believed, or begin a new one."""

    def __init__(self, client: Client, tracing: Tracing) -> None:
        super().__init__(client)
        self._tracing = tracing
        self._believes = tracing.trusts_all or client.is_trusted
        self._parent: Parent | None = None
        self._tracestate = b""

    def _block_of(self, raw: bytes, end: int) -> bytes:
        """Return the fields without traceparent and tracestate, and note what they say."""
        block = raw[end:-2]
        self._parent = None
        self._tracestate = b""
        if block == self._block:
            return block
        at = block.find(_NAME)
        if at >= 3 and block[at - 3 : at] in _USUAL:
            start = at + len(_NAME)
            end_of_line = block.find(b"\r", start)
            rest = block[: at - 3] + block[end_of_line:]
            if not self._has_context(rest):
                if self._believes:
                    self._parent = parent_of(block[start:end_of_line].strip(b" \t"))
                return rest
        elif not self._has_context(block):
            return block
        return self._without_context(block)

    def _has_context(self, block: bytes) -> bool:
        """Return whether fields of the trace context are among these; known of the last fields."""
        if block == self._block:
            return False
        lower = block.lower()
        return lower.find(b"\ntraceparent:") >= 0 or lower.find(b"\ntracestate:") >= 0

    def _without_context(self, block: bytes) -> bytes:
        """Take fields in any spelling and number out of the block."""
        parents: list[bytes] = []
        states: list[bytes] = []
        spans: list[tuple[int, int]] = []
        for name, value, span in found(_LINES, block):
            (parents if name == b"traceparent" else states).append(value)
            spans.append(span)
        if self._believes and len(parents) == 1:
            self._parent = parent_of(parents[0])
            if self._parent is not None:
                self._tracestate = state_of(states)
        return cut(block, spans)

    def _request(
        self, line: bytes, method: bytes, target: bytes, fields: RequestFields, request_id: bytes, raw: bytes
    ) -> Request:
        parent, tracing = self._parent, self._tracing
        if parent is None:
            context = tracing.ids.context()
            end = _SAMPLED if tracing.samples(context) else _UNSAMPLED
            head = b"".join((line, fields.outgoing, request_id, _BEGIN, context, end))
            return TracedRequest(method, target, head, request_id, fields, raw, tracing)
        state = b"\r\ntracestate: " + self._tracestate if self._tracestate else b""
        head = b"".join((
            line, fields.outgoing, request_id, state, _BEGIN, parent.trace_id, b"-", tracing.ids.span(), b"-",
            parent.flags, b"\r\n\r\n",
        ))  # fmt: skip
        request = TracedRequest(method, target, head, request_id, fields, raw, tracing)
        request.parent = parent
        request.tracestate = self._tracestate
        return request
