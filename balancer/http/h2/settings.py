"""Settings of HTTP/2 connections to workers. Values only."""

from __future__ import annotations

from typing import Final

from balancer.http.h1.response_head import HEAD_LIMIT
from balancer.http.h2.limits import Http2Limits

IDLE_LIMIT: Final = 5000
"""Maximum consecutive frames that advance no response: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, interim responses,
empty DATA."""

STREAM_WINDOW: Final = 262_144
"""Flow-control window of a stream in bytes: limits the memory of a slow client's response, and the throughput per round
trip."""

WORKER_LIMITS: Final = Http2Limits(
    stream_window=STREAM_WINDOW, header_list=HEAD_LIMIT, idle_frames=IDLE_LIMIT
)

MAX_STREAMS: Final = 1000
"""Maximum concurrent streams, whatever the worker allows."""

PING_AFTER: Final = 10.0
PING_WAIT: Final = 10.0
"""Seconds without data from the worker until a PING is sent, and until the connection is closed without an answer."""
