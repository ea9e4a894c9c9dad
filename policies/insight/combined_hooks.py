"""Combines the hooks of several policies into those of one.

A hook that none of them has is not created, so it costs nothing. All see the same outcomes, whichever policy picked:
what they know of the endpoints must not depend on how often they pick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Hook = Callable[..., Any]


def combine_hooks(chorus: object, policies: Sequence[object]) -> None:
    """Give `chorus` every hook that one of `policies` has."""
    for name, combined in HOOKS.items():
        hooks = [getattr(policy, name) for policy in policies if hasattr(policy, name)]
        if hooks:
            setattr(chorus, name, hooks[0] if len(hooks) == 1 else combined(hooks))


def _all(hooks: Sequence[Hook]) -> Hook:
    def tell(*arguments: Any) -> None:
        for hook in hooks:
            hook(*arguments)

    return tell


def _any(hooks: Sequence[Hook]) -> Hook:
    return lambda state: any(hook(state) for hook in hooks)


def _concatenated(hooks: Sequence[Hook]) -> Hook:
    return lambda now: [state for hook in hooks for state in hook(now)]


HOOKS: dict[str, Callable[[Sequence[Hook]], Hook]] = {
    "observe": _all,
    "observe_probe": _all,
    "members_changed": _all,
    "tick": _all,
    "doubts": _any,
    "probes": _concatenated,
}
"""Optional hooks of a policy -> how those of several are combined."""
