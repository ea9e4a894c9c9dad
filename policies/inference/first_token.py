"""Seconds in which a first token is expected of an endpoint: the compiled part of `pending_tokens.py`."""

from __future__ import annotations

from typing import Final

from policies.inference.pace import Pace
from policies.inference.tokens import EndpointTokens
from policies.steelyard.least_cost import round_trip

PAUSE_PRICE: Final = 0.05
"""Cost in seconds of one second for which one answer pauses. It also balances the answers, which nothing else does.

Simulated mean seconds to the first token, and milliseconds per further one, of eight engines:

    pause price                  0          0.02      0.05      0.1       0.3       1
    Mooncake's conversations     1.46, 33   1.45, 24  1.43, 23  1.44, 23  1.49, 23  1.60, 22
    Mooncake's synthetic trace   1.68, 55   1.63, 43  1.61, 40  1.68, 43  1.65, 40  1.78, 40
    agents, 40/s                 0.82, 101  0.64, 66  0.63, 64  0.67, 61  0.72, 57  1.07, 66
"""

IDLE_DISCOUNT: Final = 0.2
"""Part of its prefill by which an endpoint where nothing waits is cheaper: its time would be lost, and it has the
prompt's blocks from then on. Otherwise endpoints that lack a prefix that all requests share stay idle for long.

Simulated, one system prompt, 60/s: p99 0.56 s to the first token with 0, 0.46 with 0.15, 0.3 or 0.5. The other loads
are the same within 2 % from 0 to 0.5.
"""

PARTS: Final = {
    "wait": "prompts that wait there, at the pace measured there",
    "prefill": "the tokens of the prompt that are not cached there",
    "pauses": "what the others there lose by that, a twentieth of it each",
    "idle": "a fifth of prefill less where nothing waits",
    "overdue": "the prompt that is being computed takes far longer than expected",
    "distance": "one round trip",
    "failure": "share of recent requests that failed × what a failure costs",
}


def parts_of(
    each: EndpointTokens, pace: Pace, now: float
) -> tuple[float, float, float, float, float, float, float]:
    """Return the parts of an endpoint's cost in the order of `PARTS`; a slow start makes it so much slower."""
    state, latency = each.state, each.state.latency
    prefill = each.slowness * pace.seconds(each.added) / state.share
    pauses = PAUSE_PRICE * state.in_flight * prefill
    idle = -IDLE_DISCOUNT * prefill if each.queue < 0.5 else 0.0
    failure = latency.charge * state.failure_penalty(now) if latency.failures > 0.0 else 0.0
    return each.wait / state.share, prefill, pauses, idle, each.overdue, round_trip(state, 0.0), failure
