"""Seconds in which a first token is expected of an endpoint: the compiled part of `pending_tokens.py`."""

from __future__ import annotations

from typing import Final

from policies.inference.pace import Pace
from policies.inference.tokens import EndpointTokens

PAUSE_PRICE: Final = 0.03
"""Cost in seconds of one second for which prefill makes the answers of one request pause. They are counted as the mean
of all endpoints. So prompts go where they are cached the more, the more answers are written.
"""

BALANCE_PRICE: Final = 0.1
"""The same for each request that an endpoint has more than the mean, or less, for prefill up to its mean. It balances
answers between endpoints that are alike otherwise; of a long prompt, their number would decide alone.

Simulated with 22 random loads: mean and p99 of the time to the first token as multiples of the best of llm-d, lmetric,
dynamo and cache-aware, geometric means and worst.

    pause, balance price    mean     p99      worst mean    worst p99
    0.03, 0.05              0.863    0.751    1.11          1.02
    0.05, 0.05              0.867    0.781    1.33          1.32
    0.05 for each request there, however long the prompt
                            0.844    0.800    1.24          2.53

0.1 relative to 0.05: with 14 further random loads, mean 0.997, p99 0.992, worst 1.03 and 1.03. With Azure's trace of
code before eight engines, mean 0.985, p99 0.929: its p99 comes from one burst of twice what the engines compute, where
0.05 has 1.10 times the p99 of lmetric.
"""

IDLE_DISCOUNT: Final = 0.2
"""Part of its prefill by which an endpoint where nothing waits is cheaper: its time would be lost, and it has the
prompt's blocks from then on. Otherwise endpoints that lack a prefix that all requests share stay idle for long.

Simulated, one system prompt, 60/s: p99 0.56 s to the first token with 0, 0.46 with 0.15, 0.3 or 0.5. The other loads
are the same within 2 % from 0 to 0.5.
"""

PARTS: Final = {
    "wait": "prompts that wait there, or would if they had not been refused, at the pace measured there",
    "prefill": "the tokens of the prompt that are not cached there",
    "pauses": "what other requests lose by that",
    "balance": "requests there beyond the mean of the endpoints",
    "idle": "a fifth of prefill less where nothing waits",
    "overdue": "the prompt that is being computed takes far longer than expected",
    "distance": "one round trip to its region",
    "failure": "share of recent requests that failed × what a failure costs",
}


Costs = tuple[float, float, float, float, float, float, float, float]


def costs_of(accounts: list[EndpointTokens], pace: Pace, now: float) -> list[float]:
    """Return the cost of each endpoint."""
    usual = usual_in_flight(accounts)
    costs: list[float] = []
    for each in accounts:
        wait, prefill, pauses, balance, idle, overdue, distance, failure = parts_of(each, pace, usual, now)
        costs.append(wait + prefill + pauses + balance + idle + overdue + distance + failure)
    return costs


def named_parts(accounts: list[EndpointTokens], pace: Pace, now: float) -> list[dict[str, float]]:
    """Return the parts of each endpoint's cost by their names."""
    usual = usual_in_flight(accounts)
    return [dict(zip(PARTS, parts_of(each, pace, usual, now), strict=True)) for each in accounts]


def usual_in_flight(accounts: list[EndpointTokens]) -> float:
    """Return the requests in flight at an endpoint on average."""
    in_flight = 0
    for each in accounts:
        in_flight += each.state.in_flight
    return in_flight / len(accounts)


def parts_of(each: EndpointTokens, pace: Pace, usual: float, now: float) -> Costs:
    """Return the parts of an endpoint's cost in the order of `PARTS`; a slow start makes it so much slower.

    `usual` are the requests in flight at an endpoint on average."""
    state, latency = each.state, each.state.latency
    prefill = each.slowness * pace.seconds(each.added) / state.share
    pauses = PAUSE_PRICE * usual * prefill
    balance = BALANCE_PRICE * (state.in_flight - usual) * min(prefill, pace.mean)
    idle = -IDLE_DISCOUNT * prefill if each.queue < 0.5 else 0.0
    failure = latency.charge * state.failure_penalty(now) if latency.failures > 0.0 else 0.0
    return each.wait / state.share, prefill, pauses, balance, idle, each.overdue, each.distance, failure
