"""Knowledge of other units: each reports its requests in flight and measurements to the others, for this router.

A unit is a balancer on another machine, or another program on this one. This module makes the own report and applies
those of others; how they travel is the caller's part. A report is a hint for picks: it changes neither limits, nor
health, nor ejections, and it expires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from policies.endpoint.state import EndpointState
from policies.facts import Endpoint
from policies.prompts import NO_TOKENS, PromptReport, SentTokens
from policies.routing.router import Router
from policies.stats.latency import FORGET_AFTER, TAU
from policies.stats.shared_latency import SharedLatency, pooled

EXPIRY = 0.7
"""Age in seconds of a unit's last report at which the unit is forgotten. With a sweep every 0.25 s, that is done within
1 s."""

LATENCIES_EVERY = 0.25
"""Seconds between reports with latencies, which are means over seconds."""

SLICE = 100
"""Endpoints whose latency is pooled in one sweep: 15 µs each, so that a sweep delays requests by the time of a few."""

MOST_SENDERS = 256
"""Reporting processes that are heard; further ones are ignored."""


class UnitReport(NamedTuple):
    """Requests in flight and measurements by the endpoint's key.

    Endpoints without requests in flight are left out. `latencies` is None where it repeats the last ones, and so is
    `prompts`, which is also None if the policy reads none.
    """

    in_flight: Mapping[int, int]
    latencies: Mapping[int, SharedLatency] | None = None
    prompts: PromptReport | None = None


def key_of(endpoint: Endpoint) -> int:
    """Return a key of id and address, the same in every unit. Among a million endpoints two collide with a probability
    of 10⁻⁷."""
    text = f"{endpoint.id} {endpoint.address}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


class _Sender:
    """The last report of one process of another unit."""

    def __init__(self) -> None:
        self.in_flight: Mapping[int, int] = {}
        self.latencies: Mapping[int, SharedLatency] = {}
        self.tokens: Mapping[int, SentTokens] = {}
        self.made_at = 0.0


class OtherUnits:
    """Updates the endpoint states of `router` from the reports of other units, and makes the own report."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._senders: dict[int, _Sender] = {}
        self._total: dict[int, int] = {}  # requests in flight at all senders, by key
        self._tokens: dict[int, SentTokens] = {}  # tokens of all senders, by key
        self._has_reported_prompts = False
        self._states: Sequence[EndpointState] = ()
        self._by_key: dict[int, EndpointState] = {}
        self._next = 0  # index of the next state whose latency is pooled
        self._latencies_at = 0.0

    def __len__(self) -> int:
        """Number of processes of other units that report."""
        return len(self._senders)

    @property
    def endpoints(self) -> int:
        return len(self._router.states)

    @property
    def in_flight(self) -> int:
        """Requests that other units have in flight at endpoints of this router."""
        return sum(self._total.values())

    def _members(self) -> Mapping[int, EndpointState]:
        """Return the endpoint states by key; the router has a new list of states after every change."""
        states = self._router.states
        if states is not self._states:
            self._by_key = {key_of(state.endpoint): state for state in states}
            self._states = states
        return self._by_key

    def report(self, now: float, *, is_empty: bool = False) -> UnitReport:
        """Return what this router has measured itself, or nothing of it; latencies every `LATENCIES_EVERY`."""
        members: Mapping[int, EndpointState] = {} if is_empty else self._members()
        active, is_whole = self._router.active, now >= self._latencies_at
        counts = {key: here for key, state in members.items() if (here := state.in_flight_here)}
        prompts = None
        if active.report_prompts is not None and not is_empty:
            prompts = active.call(active.report_prompts, members, is_whole, now)
            self._has_reported_prompts = True
        elif is_whole and self._has_reported_prompts:
            prompts = PromptReport({})
        if not is_whole:
            return UnitReport(counts, None, prompts)
        self._latencies_at = now + LATENCIES_EVERY
        own = {key: state.latency.own() for key, state in members.items() if state.is_measured(now)}
        return UnitReport(
            counts,
            {
                key: measured
                for key, measured in own.items()
                if (measured.successes or measured.failures) and now - measured.at < FORGET_AFTER
            },
            prompts,
        )

    def hear(self, sender: int, report: UnitReport, now: float, age: float, interval: float = 0.0) -> bool:
        """Apply a report that was made `age` seconds ago and is followed by another after `interval` seconds. Returns
        whether there was room for the sender."""
        heard = self._senders.get(sender)
        if heard is None:
            if len(self._senders) >= MOST_SENDERS:
                return False
            heard = self._senders[sender] = _Sender()
        heard.made_at = now - age
        members = self._members()
        if report.latencies is not None:
            heard.latencies = {key: told for key, told in report.latencies.items() if key in members}
        self._count(
            heard, {key: count for key, count in report.in_flight.items() if count and key in members}
        )
        hear_prompts = self._router.active.hear_prompts
        if report.prompts is not None and hear_prompts is not None:
            self._count_tokens(
                heard, {key: sent for key, sent in report.prompts.tokens.items() if key in members}
            )
            self._router.active.call(hear_prompts, members, report.prompts, age, now)
        total, mean_age = self._total, age + interval / 2.0
        for key, state in members.items():
            state.update_units(total.get(key, 0), now, mean_age)
        return True

    def _count(self, heard: _Sender, in_flight: Mapping[int, int]) -> None:
        """Replace the sender's part of the totals."""
        total = self._total
        for key, count in heard.in_flight.items():
            left = total[key] - count
            if left:
                total[key] = left
            else:
                del total[key]
        for key, count in in_flight.items():
            total[key] = total.get(key, 0) + count
        heard.in_flight = in_flight

    def _count_tokens(self, heard: _Sender, tokens: Mapping[int, SentTokens]) -> None:
        """Replace the sender's part of the sums of tokens, which the endpoint states have."""
        members, sums = self._members(), self._tokens
        for sign, part in ((-1, heard.tokens), (1, tokens)):
            for key, sent in part.items():
                known = sums.get(key, NO_TOKENS)
                sums[key] = SentTokens(
                    known.waiting + sign * sent.waiting,
                    known.queue + sign * sent.queue,
                    known.resident + sign * sent.resident,
                    known.prompts + sign * sent.prompts,
                )
        for key in heard.tokens.keys() | tokens.keys():
            told = sums[key]
            if told == NO_TOKENS:
                del sums[key]
            if key in members:
                members[key].units.tokens = told
        heard.tokens = tokens

    def sweep(self, now: float) -> None:
        """Forget units that are silent, and pool the latencies of `SLICE` endpoints; call it every quarter second."""
        if not self._senders:
            return
        for sender, heard in list(self._senders.items()):
            if now - heard.made_at > EXPIRY:
                self._count(heard, {})
                self._count_tokens(heard, {})
                del self._senders[sender]
        if not self._senders:
            self.forget()
            return
        members = list(self._members().items())
        if self._next >= len(members):
            self._next = 0
        for key, state in members[self._next : self._next + SLICE]:
            told = [heard.latencies[key] for heard in self._senders.values() if key in heard.latencies]
            state.pool_latency(state.units, pooled(told, TAU))
        self._next += SLICE

    def forget(self) -> None:
        self._senders.clear()
        self._total.clear()
        self._tokens.clear()
        for state in self._members().values():
            state.forget_units()
