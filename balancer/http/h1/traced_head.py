"""Request heads with a trace context: the client's is validated and replaced by the balancer's own span.

A client's other fields mostly repeat from one request to the next, and its traceparent never does. It is taken out
before the fields are compared with the last ones, so that the cache of `RequestHeads` serves requests with one, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from balancer.http.h1.client import Client
from balancer.http.h1.fields import cut
from balancer.http.h1.request_fields import RequestFields
from balancer.http.h1.request_head import Request, RequestHeads
from balancer.tracing.context import LENGTH, flags_of, state_of, traceparent_of
from balancer.tracing.identifiers import Identifiers
from balancer.tracing.tracing import Tracing

_CONTEXT: Final = re.compile(rb"\n[tT](?i:race(?:(p)arent|state)):[ \t]*")
"""Begins a line of the trace context; the group is there if it is a traceparent. Fields without one are searched in
half the time of an expression that ignores the case of its first letter."""

_find_context: Final = _CONTEXT.search

_CR: Final = 13

_BEGIN: Final = b"\r\ntraceparent: 00-"
_ENDS: Final = (b"-00\r\n\r\n", b"-01\r\n\r\n", b"-02\r\n\r\n", b"-03\r\n\r\n")
"""Ends of a head by the flags of its traceparent."""

_RANDOM: Final = _ENDS[2]
_RANDOM_AND_SAMPLED: Final = _ENDS[3]

_SPAN_AT: Final = -23
_AFTER_SPAN: Final = -7
"""Offsets of the span id from the end of a head, whose last line is the traceparent."""


class TracedRequest(Request):
    """A request whose `head` ends in a traceparent.

    `parent` is the client's traceparent, b"" if the trace begins here, `tracestate` what the client has sent with it.
    """

    parent = b""
    tracestate = b""

    def __init__(
        self,
        method: bytes,
        target: bytes,
        head: bytes,
        request_id: bytes,
        fields: RequestFields,
        raw: bytes,
        ids: Identifiers,
    ) -> None:
        super().__init__(method, target, head, request_id, fields, raw)
        self._ids = ids

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
        return self.parent[36:52]

    @property
    def is_sampled(self) -> bool:
        return self.head[-5] & 1 == 1

    def another_head(self) -> bytes:
        """Return the head for a further attempt: it names a span of its own."""
        return self.head_naming(self._ids.span())

    def head_naming(self, span_id: bytes) -> bytes:
        """Return the head with another span id."""
        return b"".join((self.head[:_SPAN_AT], span_id, self.head[_AFTER_SPAN:]))


class TracedHeads(RequestHeads):
    """`RequestHeads` that continue the client's trace, if the client is believed, or begin a new one."""

    def __init__(self, client: Client, fresh_id: Callable[[], bytes], tracing: Tracing) -> None:
        super().__init__(client, fresh_id)
        self._tracing = tracing
        self._ids = tracing.ids
        self._believes = tracing.trusts_all or client.is_trusted
        self._parent: bytes | None = None  # traceparent of the request being parsed, with its tracestate
        self._tracestate = b""
        self._name = b""  # the last line of a traceparent up to its value
        self._at = 0  # its place

    def _block_of(self, received: bytes) -> bytes:
        """Return the fields without traceparent and tracestate, and note what they say."""
        block = received
        self._parent = None
        if block == self._block:
            return self._block  # the caller's comparison is one of identity then
        start = self._at
        value_at = start + len(self._name)
        if self._name and block[start:value_at] == self._name:
            end = value_at + LENGTH
            parent = traceparent_of(block[value_at:end])
            if parent and block[end] == _CR and block[:start] + block[end:] == self._block:
                if self._believes:
                    self._parent, self._tracestate = parent, b""
                return self._block  # nothing else has changed since the last request
        return block if _find_context(block) is None else self._without_context(block)

    def _without_context(self, block: bytes) -> bytes:
        """Take the trace context out of fields that have one, in any spelling and number."""
        parents: list[bytes] = []
        states: list[bytes] = []
        spans: list[tuple[int, int]] = []
        for match in _CONTEXT.finditer(block):
            begin, value_at = match.start() - 1, match.end()
            end = block.find(b"\r", value_at)
            spans.append((begin, end))
            value = block[value_at:end].rstrip(b" \t")
            if match[1] is None:
                states.append(value)
            else:
                parents.append(value)
                self._at, self._name = begin, block[begin:value_at]
        parent = traceparent_of(parents[0]) if self._believes and len(parents) == 1 else b""
        if parent:
            self._parent, self._tracestate = parent, state_of(states) if states else b""
        return cut(block, spans)

    def _request(
        self, line: bytes, method: bytes, target: bytes, fields: RequestFields, raw: bytes
    ) -> Request:
        """Return the request for a worker. Without an X-Request-ID it gets its trace id as one; in a continued trace
        with a span id behind it, because other requests may be in the same trace."""
        parent, ids, request_id = self._parent, self._ids, fields.request_id
        if parent is None:
            trace_id = ids.trace()
            is_sampled = self._tracing.samples_some and self._tracing.samples(trace_id)
            end = _RANDOM_AND_SAMPLED if is_sampled else _RANDOM
            request_id = request_id or trace_id
            head = b"".join((
                line, fields.outgoing, request_id, _BEGIN, trace_id, b"-", trace_id[16:], end,
            ))  # fmt: skip
            return TracedRequest(method, target, head, request_id, fields, raw, ids)
        trace_id, span_id, state = parent[3:35], ids.span(), self._tracestate
        request_id = request_id or b"%b-%b" % (trace_id, span_id)
        head = b"".join((
            line, fields.outgoing, request_id, b"\r\ntracestate: " + state if state else b"", _BEGIN,
            trace_id, b"-", span_id, _ENDS[flags_of(parent)],
        ))  # fmt: skip
        request = TracedRequest(method, target, head, request_id, fields, raw, ids)
        request.parent = parent
        request.tracestate = state
        return request


def heads_for(client: Client, fresh_id: Callable[[], bytes]) -> RequestHeads:
    """Return the parser of a client's request heads."""
    if client.tracing is None:
        return RequestHeads(client, fresh_id)
    return TracedHeads(client, fresh_id, client.tracing)
