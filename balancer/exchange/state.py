"""States of an exchange and of its attempts; docs/design.md shows the transitions."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """State of an exchange."""

    NEW = "new"
    """The head has come; earlier requests of the connection may not have been answered."""

    RECEIVING = "receiving"
    """Its body is received whole before an endpoint is asked (`buffering.py`)."""

    QUEUED = "queued"
    """Every endpoint is full: the request is in the wait queue."""

    ATTEMPTING = "attempting"
    """The request has an endpoint; the attempt has a state of its own."""

    ENDED = "ended"
    """Answered, cut, abandoned, or handed over to a tunnel."""


class End(Enum):
    """How an exchange ends."""

    WHOLE = "whole"
    """The whole response has been written."""

    ERROR = "error"
    """The client gets an error response: nothing of another one has been sent."""

    CUT = "cut"
    """A response that has started is aborted: the client must see that it is incomplete (RFC 9112 § 8)."""

    LEFT = "left"
    """The client's connection has ended."""

    TUNNEL = "tunnel"
    """The tunnel that had taken both connections over has closed."""


class AttemptState(Enum):
    """State of an attempt; it keeps its last one when its exchange ends."""

    CONNECTING = "connecting"
    """It waits for an upstream connection."""

    SENT = "sent"
    """The request has been sent, its body perhaps in part; no final response head has come."""

    BUFFERING = "buffering"
    """A short response is being received and kept back; the request can still be retried elsewhere."""

    STREAMING = "streaming"
    """The response is passed on as it comes: the client has seen its head."""
