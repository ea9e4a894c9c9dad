"""Spans under seeded faults: every attempt and every forwarded request leaves exactly one, whatever becomes of it."""

from __future__ import annotations

from collections import Counter

import pytest

from balancer.tracing.spans import Kind, Span, SpanCounts
from balancer.tracing.tracing import Tracing
from tests.faultsim.draw import draw
from tests.faultsim.simulation import Simulation

FIRST = 5000
SEEDS = 5
SLICES = 8


class Collected:
    """Keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.counts = SpanCounts()
        self.is_good = True
        self.waiting = 0

    def add(self, span: Span) -> None:
        self.spans.append(span)

    def offset(self) -> float:
        return 0.0

    def stop(self) -> None:
        """Nothing waits."""


def spans_of(seed: int) -> tuple[list[Span], Simulation]:
    """Run a seed with every request sampled; all other invariants hold, too."""
    simulation, collected = Simulation(draw(seed)), Collected()
    simulation.cluster.process.tracing = Tracing(trusts_all=True, sample=1.0, spans=collected)
    simulation.run()
    return collected.spans, simulation


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=() if part == 0 else pytest.mark.second_tier) for part in range(SLICES)]
)
def test_every_attempt_and_request_has_one_span(part: int) -> None:
    for seed in range(FIRST + part * SEEDS, FIRST + (part + 1) * SEEDS):
        spans, simulation = spans_of(seed)
        kinds = Counter(span.kind for span in spans)
        assert kinds[Kind.CLIENT] == simulation.cluster.router.routed, seed
        assert len({span.id for span in spans}) == len(spans), seed
        requests = [span for span in spans if span.kind is Kind.SERVER]
        assert len({span.trace_id for span in requests}) == len(requests), seed
        ids = {span.id: span for span in spans}
        for span in spans:
            assert span.start <= span.end, (seed, span)
            if span.kind is not Kind.SERVER:
                parent = ids[span.parent_id]
                assert parent.trace_id == span.trace_id, (seed, span)
                assert parent.kind is (Kind.CLIENT if span.name == "connect" else Kind.SERVER), (seed, span)
        assert len(requests) == simulation.cluster.counts.requests, seed
