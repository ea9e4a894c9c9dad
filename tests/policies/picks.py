"""Picks of the default policy over simple workers, as a digest: `python picks.py REQUESTS OPTIONS`, the latter in JSON.

Prints the digest and the number of requests per endpoint, and of those rejected; the build is whatever this interpreter
imports.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Any

from policies import Endpoint, Outcome, OutcomeKind, RequestFacts, Router
from policies.contract import ManualClock
from policies.errors import Overloaded
from policies.routing.assignment import Assignment
from policies.steelyard.policy import Steelyard

RATE = 400.0
"""Requests per second, of which the nine endpoints can serve 600. For 15 s of each 100 it is three times as many."""

PATIENCE = 2.0
"""Seconds after which clients give up."""


def main(requests: int, options: dict[str, Any]) -> None:
    clock, rng = ManualClock(), Random(1)
    regions = [("near", 0.004, 4), ("away", 0.05, 3), ("far", 0.15, 2)]
    members = [
        (Endpoint(f"{region}-{i}", f"http://{region}-{i}", region, 1.0 + i % 2), distance)
        for region, distance, count in regions
        for i in range(count)
    ]
    distances = {endpoint.id: distance for endpoint, distance in members}
    free = {endpoint.id: [0.0, 0.0] for endpoint, _ in members}
    router = Router([endpoint for endpoint, _ in members], Steelyard(Random(2), **options), clock, Random(3))
    flying: list[tuple[float, int]] = []
    assignments: dict[int, tuple[Assignment, float, OutcomeKind]] = {}
    digest, served = sha256(), Counter[str]()
    for number in range(requests):
        arrives_at = clock.time + rng.expovariate(3 * RATE if clock.time % 100.0 > 85.0 else RATE)
        while flying and flying[0][0] <= arrives_at:
            clock.time, ended = heappop(flying)
            assignment, sent_at, kind = assignments.pop(ended)
            first_byte_at = None if kind is OutcomeKind.ABANDONED else clock.time
            router.settle(assignment, Outcome(kind, 200, sent_at, first_byte_at, clock.time))
        clock.time = arrives_at
        try:
            assignment = router.route(RequestFacts(region="near"))
        except Overloaded:
            served["rejected"] += 1
            digest.update(b"rejected")
            continue
        name = assignment.state.id
        served[name] += 1
        digest.update(name.encode())
        slots, distance = free[name], distances[name]
        starts_at = max(heappop(slots), clock.time + distance / 2)
        slow = 6.0 if name == "near-1" and clock.time % 20.0 < 4.0 else 1.0
        ends_at = starts_at + slow * rng.expovariate(33.0)
        heappush(slots, ends_at)
        kind = OutcomeKind.ERROR_STATUS if rng.random() < 0.01 else OutcomeKind.OK
        answered_at, left_at = ends_at + distance / 2, clock.time + PATIENCE
        if answered_at > left_at:
            answered_at, kind = left_at, OutcomeKind.ABANDONED
        assignments[number] = assignment, clock.time, kind
        heappush(flying, (answered_at, number))
    print(json.dumps({"digest": digest.hexdigest(), "served": served}))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
