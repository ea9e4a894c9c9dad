"""Format of the reports that units exchange. Pure: no I/O.

    version of the message, version of a latency record    2 bytes, and 2 of padding
    seconds until the next report                          4
    key of the unit, of its process, of its home region    8 each
    time of the sender's monotonic clock                   8
    number of counts, number of latency records + 1        4 each; 0: no latencies in this report
    key of the endpoint, requests in flight                12 for each count
    key of the endpoint, latency record                    8 + 4 for each number of a record

All little-endian. A message that differs in any way from this is not used at all.
"""

from __future__ import annotations

from math import isfinite
from struct import Struct
from typing import NamedTuple

from policies.routing.units import UnitReport
from policies.stats.shared_latency import RECORD_VERSION, SharedLatency, from_record, to_record

VERSION = 1
HEAD = Struct("<BBxxfqqqdII")
COUNT = Struct("<qI")
LATENCY = Struct(f"<q{len(SharedLatency._fields)}f")

MOST_ENDPOINTS = 4096
"""Counts or latency records in one message; endpoints beyond it are left out."""

MOST_IN_FLIGHT = 100_000
"""Requests in flight of one process at one endpoint; more is not credible."""

LONGEST_INTERVAL = 10.0
"""Seconds until the next report; more is not credible."""


class BadMessage(Exception):
    """Data that is not a valid report of this version."""


class Message(NamedTuple):
    """A report and its sender. `unit`, `sender` and `place` are keys of the unit, its process and its home region;
    `interval` is in seconds, `sent_at` a time of the sender's clock."""

    unit: int
    sender: int
    place: int
    interval: float
    sent_at: float
    report: UnitReport


def encode(message: Message) -> bytes:
    """Return the message as bytes; times in latency records become ages."""
    counts = list(message.report.in_flight.items())[:MOST_ENDPOINTS]
    parts = [COUNT.pack(key, min(count, MOST_IN_FLIGHT)) for key, count in counts]
    records = 0
    if message.report.latencies is not None:
        told = list(message.report.latencies.items())[:MOST_ENDPOINTS]
        records = len(told) + 1
        parts += [LATENCY.pack(key, *to_record(own, message.sent_at)) for key, own in told]
    head = HEAD.pack(
        VERSION,
        RECORD_VERSION,
        message.interval,
        *(message.unit, message.sender, message.place, message.sent_at),
        *(len(counts), records),
    )
    return b"".join((head, *parts))


def decode(data: object, now: float) -> Message:
    """Parse a message that arrives at `now`. Raises `BadMessage`."""
    if not isinstance(data, bytes) or len(data) < HEAD.size:
        raise BadMessage("it is too short")
    version, record, interval, unit, sender, place, sent_at, counts, records = HEAD.unpack_from(data)
    if (version, record) != (VERSION, RECORD_VERSION):
        raise BadMessage(f"its version is {version}.{record}, not {VERSION}.{RECORD_VERSION}")
    if max(counts, records - 1) > MOST_ENDPOINTS:
        raise BadMessage(f"it has more than {MOST_ENDPOINTS} endpoints")
    end = HEAD.size + counts * COUNT.size
    if len(data) != end + max(0, records - 1) * LATENCY.size:
        raise BadMessage("its length is wrong")
    if not (0.0 <= interval <= LONGEST_INTERVAL and isfinite(sent_at)):
        raise BadMessage("it has an impossible time")
    in_flight = dict(COUNT.iter_unpack(memoryview(data)[HEAD.size : end]))
    if in_flight and max(in_flight.values()) > MOST_IN_FLIGHT:
        raise BadMessage("it has an impossible number of requests")
    latencies = _latencies(memoryview(data)[end:], now) if records else None
    return Message(unit, sender, place, interval, sent_at, UnitReport(in_flight, latencies))


def _latencies(data: memoryview, now: float) -> dict[int, SharedLatency]:
    latencies: dict[int, SharedLatency] = {}
    for key, *numbers in LATENCY.iter_unpack(data):
        measured = from_record(numbers, now)
        if measured is None:
            raise BadMessage("it has an impossible latency")
        latencies[key] = measured
    return latencies
