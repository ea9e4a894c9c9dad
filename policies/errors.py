"""What can go wrong in this room: one tree.

Rule of this file: an error that a client may see knows its HTTP `status`, one that ends a command knows
its `exit_code`. Messages name the thing at fault and what would have been right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.routing.endpoint_state import EndpointState


MOST_NAMES = 20
"""Names that a message lists."""


def some_of(names: Iterable[str]) -> str:
    """The names for a message; of many the first ones, and how many there are."""
    names = list(names)
    more = f", … ({len(names)} in all)" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


class PoliciesError(Exception):
    """Root of the tree."""

    status = 500
    exit_code = 1


class NoEndpointAvailable(PoliciesError):
    """Nothing can take the request now.

    Raised on the hot path of an overloaded unit, so the states are only looked at when somebody asks.
    """

    status = 503

    def __init__(self, states: Sequence[EndpointState]) -> None:
        super().__init__()
        self._states = states

    @property
    def is_saturated(self) -> bool:
        """Whether waiting may help: some endpoint is fit and merely full."""
        return any(state.is_fit for state in self._states)

    def __str__(self) -> str:
        enabled = [state for state in self._states if state.enabled]
        fit = [state for state in enabled if state.is_fit]
        full = sum(state.is_full for state in fit)
        return (
            f"no endpoint available: {len(self._states)} known, {len(enabled)} up, "
            f"{len(fit)} of these fit, {full} of these full"
        )


class AlreadySettled(PoliciesError):
    """An assignment was settled twice: its in-flight count would have drifted."""


class WaitQueueFull(PoliciesError):
    """As many wait as may."""

    status = 503


class UnknownEndpoint(PoliciesError):
    """No endpoint has this id."""

    status = 404


class DuplicateEndpoint(PoliciesError):
    """Two endpoints share an id."""

    status = 400
    exit_code = 2


class UnknownPolicy(PoliciesError):
    """A name that is neither in the table nor an entry point."""

    status = 400
    exit_code = 2

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        close = get_close_matches(name, self.known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        super().__init__(f"unknown policy '{name}'; known: {', '.join(self.known)}{hint}")


class BrokenPolicy(PoliciesError):
    """A policy of another package that cannot be loaded."""

    status = 400
    exit_code = 2


class BadPolicyOption(PoliciesError):
    """An option that a policy does not have, or a value that it cannot take.

    `field` is the dotted path in the configuration ("policy.inner.choices"), `reason` what is allowed there.
    """

    status = 400
    exit_code = 2

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")

    def within(self, prefix: str) -> BadPolicyOption:
        """The same error, seen from the table that holds the option."""
        return type(self)(f"{prefix}.{self.field}", self.reason)
