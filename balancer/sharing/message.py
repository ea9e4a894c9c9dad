"""Format of the reports that units exchange. Pure: no I/O.

    version of the message, version of a latency record    2 bytes, and 2 of padding
    seconds until the next report                          4
    key of the unit, of its process, of its home region    8 each
    time of the sender's monotonic clock                   8
    number of counts, number of latency records + 1        4 each; 0: no latencies in this report
    key of the endpoint, requests in flight                12 for each count
    key of the endpoint, latency record                    8 + 4 for each number of a record

This is version 1. Where the policy reads prompts, the version is 2, and this follows:

    number of endpoints with tokens, of prefixes           4 each
    key of the endpoint, its tokens                        32 for each endpoint, see `SentTokens`
    key of the endpoint, kind, number of blocks            16 for each prefix, and then
    hashes of the blocks                                   8 each

All little-endian. A message that differs in any way from this is not used at all.
"""

from __future__ import annotations

from math import isfinite
from struct import Struct
from typing import NamedTuple

from policies.inference.news import MOST_BYTES
from policies.prompts import ONLY_THERE, SENT, Prefix, PromptReport, SentTokens
from policies.routing.units import UnitReport
from policies.stats.shared_latency import RECORD_VERSION, SharedLatency, from_record, to_record

VERSION, WITH_PROMPTS = 1, 2
HEAD = Struct("<BBxxfqqqdII")
COUNT = Struct("<qI")
LATENCY = Struct(f"<q{len(SharedLatency._fields)}f")
PROMPTS = Struct("<II")
TOKENS = Struct("<q4Iff")
PREFIX = Struct("<qII")
BLOCK_HASH = 8

MOST_ENDPOINTS = 4096
"""Counts or latency records in one message; endpoints beyond it are left out."""

MOST_IN_FLIGHT = 100_000
"""Requests in flight of one process at one endpoint; more is not credible."""

MOST_TOKENS = 1_000_000_000
"""Tokens or prompts of one process at one endpoint, and seconds since its last first token; more is not credible."""

MOST_CAPACITY = 1e15
"""Blocks that an endpoint may be assumed to hold; more is not credible."""

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
    if message.report.prompts is not None:
        parts += _packed(message.report.prompts)
    head = HEAD.pack(
        VERSION if message.report.prompts is None else WITH_PROMPTS,
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
    if version not in (VERSION, WITH_PROMPTS) or record != RECORD_VERSION:
        known = f"{VERSION}.{RECORD_VERSION} or {WITH_PROMPTS}.{RECORD_VERSION}"
        raise BadMessage(f"its version is {version}.{record}, not {known}")
    if max(counts, records - 1) > MOST_ENDPOINTS:
        raise BadMessage(f"it has more than {MOST_ENDPOINTS} endpoints")
    end = HEAD.size + counts * COUNT.size
    rest = end + max(0, records - 1) * LATENCY.size
    if len(data) < rest or (version == VERSION and len(data) != rest):
        raise BadMessage("its length is wrong")
    if not (0.0 <= interval <= LONGEST_INTERVAL and isfinite(sent_at)):
        raise BadMessage("it has an impossible time")
    in_flight = dict(COUNT.iter_unpack(memoryview(data)[HEAD.size : end]))
    if in_flight and max(in_flight.values()) > MOST_IN_FLIGHT:
        raise BadMessage("it has an impossible number of requests")
    latencies = _latencies(memoryview(data)[end:rest], now) if records else None
    prompts = _prompts(memoryview(data)[rest:]) if version == WITH_PROMPTS else None
    return Message(unit, sender, place, interval, sent_at, UnitReport(in_flight, latencies, prompts))


def _latencies(data: memoryview, now: float) -> dict[int, SharedLatency]:
    latencies: dict[int, SharedLatency] = {}
    for key, *numbers in LATENCY.iter_unpack(data):
        measured = from_record(numbers, now)
        if measured is None:
            raise BadMessage("it has an impossible latency")
        latencies[key] = measured
    return latencies


def _packed(prompts: PromptReport) -> list[bytes]:
    told = list(prompts.tokens.items())[:MOST_ENDPOINTS]
    parts = [PROMPTS.pack(len(told), len(prompts.prefixes))]
    for key, sent in told:
        waiting, queue, resident, number = [min(each, MOST_TOKENS) for each in sent[:4]]
        ago = min(max(0.0, sent.computed_ago), MOST_TOKENS)
        parts.append(
            TOKENS.pack(key, waiting, queue, resident, number, min(sent.capacity, MOST_CAPACITY), ago)
        )
    for key, kind, blocks in prompts.prefixes:
        parts += PREFIX.pack(key, kind, len(blocks)), Struct(f"<{len(blocks)}Q").pack(*blocks)
    return parts


def _prompts(data: memoryview) -> PromptReport:
    if len(data) < PROMPTS.size:
        raise BadMessage("its length is wrong")
    endpoints, prefixes = PROMPTS.unpack_from(data)
    at = PROMPTS.size + endpoints * TOKENS.size
    if endpoints > MOST_ENDPOINTS or len(data) - at > MOST_BYTES:
        raise BadMessage(f"it has tokens of more than {MOST_ENDPOINTS} endpoints or too many prefixes")
    if len(data) < at:
        raise BadMessage("its length is wrong")
    tokens = {key: SentTokens(*sent) for key, *sent in TOKENS.iter_unpack(data[PROMPTS.size : at])}
    for sent in tokens.values():
        if max(sent[:4]) > MOST_TOKENS or not (
            0.0 <= sent.capacity <= MOST_CAPACITY * 1.01 and 0.0 <= sent.computed_ago <= MOST_TOKENS
        ):
            raise BadMessage("it has an impossible number of tokens")
    found = list[Prefix]()
    while at < len(data) and len(data) - at >= PREFIX.size:
        key, kind, blocks = PREFIX.unpack_from(data, at)
        at += PREFIX.size
        if not SENT <= kind <= ONLY_THERE or not 0 < blocks * BLOCK_HASH <= len(data) - at:
            raise BadMessage("it has an impossible prefix")
        found.append(Prefix(key, kind, Struct(f"<{blocks}Q").unpack_from(data, at)))
        at += blocks * BLOCK_HASH
    if at != len(data) or len(found) != prefixes:
        raise BadMessage("its length is wrong")
    return PromptReport(tokens, found)
