"""Load-balancing policies and endpoint state. Standard library only; no I/O, no clock, no shared randomness."""

from policies.clock import Clock, MonotonicClock
from policies.endpoint.available import Available
from policies.endpoint.ejection import EjectionRules
from policies.endpoint.state import EndpointState
from policies.errors import (
    AlreadySettled,
    BadPolicyOption,
    BrokenPolicy,
    DuplicateEndpoint,
    NoEndpointAvailable,
    Overloaded,
    PoliciesError,
    UnknownEndpoint,
    UnknownPolicy,
)
from policies.facts import AdminState, Endpoint, Outcome, OutcomeKind, Region, ReportedLoad, RequestFacts
from policies.health.health import Health
from policies.health.panic import Panic
from policies.health.slow_start import SlowStart
from policies.insight.explanation import Explanation, Trace
from policies.policy import Policy, PolicyMaker
from policies.registry import describe, from_spec, known, make
from policies.routing.assignment import Assignment
from policies.routing.router import Router
from policies.selection.two_choices import less_loaded_of_two

__all__ = [
    "AdminState",
    "AlreadySettled",
    "Assignment",
    "Available",
    "BadPolicyOption",
    "BrokenPolicy",
    "Clock",
    "DuplicateEndpoint",
    "EjectionRules",
    "Endpoint",
    "EndpointState",
    "Explanation",
    "Health",
    "MonotonicClock",
    "NoEndpointAvailable",
    "Outcome",
    "OutcomeKind",
    "Overloaded",
    "Panic",
    "PoliciesError",
    "Policy",
    "PolicyMaker",
    "Region",
    "ReportedLoad",
    "RequestFacts",
    "Router",
    "SlowStart",
    "Trace",
    "UnknownEndpoint",
    "UnknownPolicy",
    "describe",
    "from_spec",
    "known",
    "less_loaded_of_two",
    "make",
]
