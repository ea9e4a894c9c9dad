"""Explanations of routing decisions: for all requests for a limited time, or for single requests that ask in a field.

Disabled, it costs one attribute test per attempt. An explanation never contains a request's key, path or client: only
the endpoints considered, their scores, and the parts of these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any, Final

from balancer.config.schema.sections import ExplainConfig
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from policies.facts import RequestFacts
from policies.insight.explanation import Trace
from policies.routing.assignment import Assignment
from policies.routing.router import Router

LINE_LIMIT: Final = 1024
"""Characters of an explanation in a response; a longer one, for hundreds of endpoints, is truncated."""

MAX_EXPLANATIONS: Final = 100

_UNFIT: Final = re.compile(r"[^ -~]")


class Explanations:
    """Explanations of the picks of one cluster. `reasons` counts the reasons of all explained picks since the start."""

    def __init__(self, router: Router, now: Callable[[], float]) -> None:
        self._router = router
        self._now = now
        self._is_standing = False  # explanations are enabled in the configuration
        self._until = -inf
        self.reasons: Counter[str] = Counter()
        self.trace = Trace(MAX_EXPLANATIONS, self.reasons)

    @property
    def is_on(self) -> bool:
        return self._router.trace is self.trace

    def apply(self, config: ExplainConfig) -> Explaining | None:
        """Apply the configuration. Returns an `Explaining` for single requests, None if none is configured."""
        self._is_standing = config.enabled
        self._settle(self._now())
        return Explaining(self._router, config, self) if config.header is not None else None

    def start(self, seconds: float, keep: int) -> None:
        """Explain every pick for `seconds`, and keep the last `keep` of them."""
        self.trace = Trace(keep, self.reasons)
        self._until = self._now() + seconds
        self._router.explain(self.trace)

    def stop(self) -> None:
        """End the period of `start`. The configuration may keep explanations on; the picks kept can still be read."""
        self._until = -inf
        self._settle(self._now())

    def tick(self, now: float) -> None:
        """End the period once its time has passed; called by the sweep."""
        if now >= self._until > -inf:
            self.stop()

    def _settle(self, now: float) -> None:
        is_wanted = self._is_standing or now < self._until
        if is_wanted != self.is_on:
            self._router.explain(self.trace if is_wanted else None)

    def status(self) -> dict[str, Any]:
        """Return whether explanations are on, the seconds left, how often each reason was given, and the last pick."""
        last = self.trace.last
        left = max(0.0, self._until - self._now()) if self._until > -inf else None
        return {
            "on": self.is_on,
            "seconds_left": left,
            "picks": self.trace.picks,
            "reasons": dict(self.reasons),
            "last": None if last is None else last.text,
        }

    def document(self) -> dict[str, Any]:
        """Return the status and the last picks, newest first; `age` in seconds."""
        now = self._now()
        recent = [pick.as_dict() for pick in reversed(self.trace.recent)]
        for pick in recent:
            pick["age"] = round(now - pick.pop("at"), 6)
        return self.status() | {"recent": recent}


class Explaining:
    """Explain single requests that ask for it in a request field, if the client may."""

    def __init__(self, router: Router, config: ExplainConfig, explanations: Explanations) -> None:
        self._router = router
        self._explanations = explanations
        self._asks = re.compile(rb"\n(?i:%b):" % re.escape((config.header or "").encode())).search
        self._trusts_all = config.trust == "all"
        self._answer = config.response_header
        self.line = b""
        """Response line that explains the last pick, b"" if it was not explained."""

    def route(self, facts: RequestFacts, request: Request, client: Client) -> Assignment:
        """Route a request, explaining the pick if the request asks for it. Raises `NoEndpointAvailable`."""
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
