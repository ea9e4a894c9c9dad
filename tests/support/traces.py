"""Traces of picks."""

from __future__ import annotations

from policies import Router
from policies.insight.explanation import Explanation, Trace


def traced(router: Router, keep: int = 1) -> Trace:
    """A trace of the router's picks from now on."""
    trace = Trace(keep)
    router.explain(trace)
    return trace


def last(trace: Trace) -> Explanation:
    """What the latest pick noted."""
    assert trace.last is not None
    return trace.last
