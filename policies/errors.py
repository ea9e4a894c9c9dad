"""Exceptions of the `policies` package.

An error that a client may see has its HTTP `status`, one that ends a command its `exit_code`. A message names what is
wrong and what is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from traceback import walk_tb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.endpoint.state import EndpointState

MOST_NAMES = 20
"""Most names that a message lists."""


def some_of(names: Iterable[str]) -> str:
    """Return the names joined for a message; of more than `MOST_NAMES` the first ones and the total."""
    names = list(names)
    more = f", … ({len(names)} in all)" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


LONGEST_FAULT = 300
"""Characters that are shown of a fault of a policy."""


def raised(fault: BaseException) -> str:
    """Describe in one line what a policy raised, or that it returned something that is no endpoint."""
    text = shown(fault)
    if isinstance(fault, AttributeError | TypeError) and (
        "is_selectable" in text or "EndpointState object" in text
    ):
        return f"returned what is no endpoint: {text}"
    return f"raised {text}{_place(fault)}"


OWN_PACKAGES = frozenset(("policies", "balancer", "experiments"))
"""Packages that call a policy: the first other module of a traceback is the policy's own."""


def is_own(module: str) -> bool:
    """Return whether a module is one of this distribution and not of a user's policy."""
    return module.partition(".")[0] in OWN_PACKAGES


def place_of_pick(policy: object) -> str:
    """Return ` (pick at file:line)` of a user's policy; empty for one of this distribution."""
    pick = getattr(type(policy), "pick", None)
    code = getattr(pick, "__code__", None)
    if code is None or is_own(getattr(pick, "__module__", None) or ""):
        return ""
    return f" (pick at {code.co_filename}:{code.co_firstlineno})".replace("\n", " ")


def _place(fault: BaseException) -> str:
    """Return ` at file:line` of the innermost frame in the module of a user's policy, or else in this distribution
    unless it is an error of its own."""
    module, place = None, ""
    for frame, line in walk_tb(fault.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if module is None and not is_own(name):
            module = name
        if name == module or (module is None and not isinstance(fault, PoliciesError)):
            place = f" at {frame.f_code.co_filename}:{line}"
    return place.replace("\n", " ")


def shown(value: object) -> str:
    """Return the `repr` of an object of a user's code in one line, at most `LONGEST_FAULT` characters."""
    try:
        return " ".join(repr(value).split())[:LONGEST_FAULT]
    except Exception:  # its own `__repr__` fails
        return type(value).__name__


class PoliciesError(Exception):
    """Base class of all errors of this package."""

    status = 500
    exit_code = 1


class NoEndpointAvailable(PoliciesError):
    """No endpoint can take the request now.

    Raised on the hot path of an overloaded proxy, so the states are inspected only when the message is read.
    """

    status = 503

    def __init__(self, states: Sequence[EndpointState]) -> None:
        super().__init__()
        self._states = states

    def __str__(self) -> str:
        enabled = [state for state in self._states if state.enabled]
        eligible = [state for state in enabled if state.is_eligible]
        full = sum(state.is_full for state in eligible)
        return (
            f"no endpoint available: {len(self._states)} known, {len(enabled)} ready, "
            f"{len(eligible)} of these eligible, {full} of these full"
        )


class Overloaded(NoEndpointAvailable):
    """The policy rejects the request: it would wait at every endpoint, and requests fail because they wait.

    To wait for an endpoint with room would not help: none is full."""

    def __init__(self) -> None:
        super().__init__(())

    def __str__(self) -> str:
        return "every endpoint has a queue, and requests fail because they wait"


class AlreadySettled(PoliciesError):
    """An assignment was settled twice; without this error its in-flight count would drift."""


class WaitQueueFull(PoliciesError):
    """The wait queue has reached its limit."""

    status = 503


class UnknownEndpoint(PoliciesError):
    """No endpoint has the given id."""

    status = 404


class DuplicateEndpoint(PoliciesError):
    """Two endpoints of the configuration have the same id."""

    status = 400
    exit_code = 2


class UnknownPolicy(PoliciesError):
    """A policy name that is neither built in nor an entry point."""

    status = 400
    exit_code = 2

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        close = get_close_matches(name, self.known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        super().__init__(f"unknown policy '{name}'; known: {', '.join(self.known)}{hint}")


class BrokenPolicy(PoliciesError):
    """A policy of another package cannot be loaded."""

    status = 400
    exit_code = 2


class BadPolicyOption(PoliciesError):
    """A policy has no such option, or the option's value is invalid.

    `field` is the dotted path in the configuration ("policy.inner.choices"), `reason` the allowed values.
    """

    status = 400
    exit_code = 2

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")

    def within(self, prefix: str) -> BadPolicyOption:
        """Return the same error with `prefix` put before its `field`."""
        return type(self)(f"{prefix}.{self.field}", self.reason)
