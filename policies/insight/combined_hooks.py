"""Combines the hooks of several policies into those of one.

A hook that none of them has is not created, so it costs nothing. All see the same outcomes, whichever policy picked:
what they know of the endpoints must not depend on how often they pick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from policies.endpoint.state import EndpointState
from policies.policy import Policy

FORWARDED = ("observe", "observe_probe", "members_changed", "tick")
"""Hooks without a result, called for every policy."""

ASKED = "probes"
"""The hook that returns the endpoints to probe."""

DOUBTS = "doubts"
"""The hook that says whether an endpoint may be slow or fail."""


def combine_hooks(chorus: object, policies: Sequence[Policy]) -> None:
    """Give `chorus` every hook that one of `policies` has."""
    for name in FORWARDED:
        hooks = hooks_of(policies, name)
        if hooks:
            setattr(chorus, name, hooks[0] if len(hooks) == 1 else _all(hooks))
    doubts = hooks_of(policies, DOUBTS)
    if doubts:
        setattr(chorus, DOUBTS, doubts[0] if len(doubts) == 1 else _any(doubts))
    asked = hooks_of(policies, ASKED)
    if asked:
        setattr(chorus, ASKED, asked[0] if len(asked) == 1 else _concatenate(asked))


def hooks_of(policies: Sequence[Policy], name: str) -> list[Callable[..., Any]]:
    """Return the hook of each policy that has it."""
    return [getattr(policy, name) for policy in policies if hasattr(policy, name)]


def _any(hooks: Sequence[Callable[..., bool]]) -> Callable[..., bool]:
    return lambda state: any(hook(state) for hook in hooks)


def _all(hooks: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*arguments: Any) -> None:
        for hook in hooks:
            hook(*arguments)

    return tell


def _concatenate(
    hooks: Sequence[Callable[[float], Sequence[EndpointState]]],
) -> Callable[[float], list[EndpointState]]:
    def ask(now: float) -> list[EndpointState]:
        return [state for hook in hooks for state in hook(now)]

    return ask
