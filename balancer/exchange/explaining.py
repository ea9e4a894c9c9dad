"""Why requests go where they go, for operators who ask for a while and for single requests that ask.

Rule of this file: off, it is one attribute test per attempt. What is told of a request never holds its key, its path or
its client: only who was considered, and the scores.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final

from balancer.config.explain import ExplainConfig
from policies.insight.explanation import Trace

if TYPE_CHECKING:
    from balancer.downstream.client import Client
    from balancer.http1.request_head import Request
    from policies.routing.assignment import Assignment
    from policies.routing.facts import RequestFacts
    from policies.routing.router import Router

LINE_LIMIT: Final = 1024
"""Characters of an explanation in a response: who considers hundreds of endpoints says no more than its beginning."""

KEPT: Final = 100

_UNFIT: Final = re.compile(r"[^ -~]")


class Explanations:
    """A unit's. `reasons` counts those of all explained picks since the start."""

    def __init__(self, router: Router, now: Callable[[], float]) -> None:
        self._router = router
        self._now = now
        self._is_standing = False  # the configuration asks for it
        self._until = -inf
        self.reasons: Counter[str] = Counter()
        self.trace = self._fresh(KEPT)

    def _fresh(self, keep: int) -> Trace:
        trace = Trace(keep)
        trace.counts = self.reasons
        return trace

    @property
    def is_on(self) -> bool:
        """Whether every pick is explained."""
        return self._router.trace is self.trace

    def apply(self, config: ExplainConfig) -> Explaining | None:
        """Go by this from now on; returns what explains single requests, if it is to."""
        self._is_standing = config.enabled
        self._settle(self._now())
        return Explaining(self._router, config, self) if config.header is not None else None

    def start(self, seconds: float, keep: int) -> None:
        """Explain every pick for so long, and keep the last so many."""
        self.trace = self._fresh(keep)
        self._until = self._now() + seconds
        self._router.explain(self.trace)

    def stop(self) -> None:
        """No more, unless the configuration asks for it; what was kept can still be read."""
        self._until = -inf
        self._settle(self._now())

    def tick(self, now: float) -> None:
        """The sweep: it has lasted as long as was asked for."""
        if now >= self._until > -inf:
            self.stop()

    def _settle(self, now: float) -> None:
        is_wanted = self._is_standing or now < self._until
        if is_wanted != self.is_on:
            self._router.explain(self.trace if is_wanted else None)

    def status(self) -> dict[str, Any]:
        """Whether it is on, for how long, and how often each reason was given."""
        left = max(0.0, self._until - self._now()) if self._until > -inf else None
        return {
            "on": self.is_on,
            "seconds_left": left,
            "picks": self.trace.picks,
            "reasons": dict(self.reasons),
        }

    def told(self) -> dict[str, Any]:
        """The same with the last picks, the newest first; `age` in seconds."""
        now = self._now()
        recent = [pick.as_dict() for pick in reversed(self.trace.recent)]
        for pick in recent:
            pick["age"] = round(now - pick.pop("at"), 6)
        return self.status() | {"recent": recent}


class Explaining:
    """Explains the requests that ask for it in a field, where that counts."""

    def __init__(self, router: Router, config: ExplainConfig, explanations: Explanations) -> None:
        self._router = router
        self._explanations = explanations
        self._asks = re.compile(rb"\n(?i:%b):" % re.escape((config.header or "").encode())).search
        self._trusts_all = config.trust == "everybody"
        self._answer = config.answer
        self.line = b""
        """What the client of the last pick is told: a line, or nothing."""

    def route(self, facts: RequestFacts, request: Request, client: Client) -> Assignment:
        """As the router does it. Raises `NoEndpointAvailable`."""
        self.line = b""
        router, explanations = self._router, self._explanations
        if not (self._trusts_all or client.is_trusted) or self._asks(request.raw) is None:
            return router.route(facts)
        is_on = explanations.is_on
        if not is_on:
            router.explain(explanations.trace)
        try:
            assignment = router.route(facts)
        finally:
            if not is_on:
                router.explain(None)
        words = _UNFIT.sub("?", str(explanations.trace.last))[:LINE_LIMIT]
        self.line = f"{self._answer}: {words}\r\n".encode("ascii")
        return assignment
