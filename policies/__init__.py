"""Policies: where a request should go. Standard library only; no I/O, no clock, no shared randomness."""

from policies.assignment import Assignment
from policies.available import Available
from policies.clock import Clock, MonotonicClock
from policies.ejection import EjectionRules
from policies.errors import (
    AlreadySettled,
    BadPolicyOption,
    BrokenPolicy,
    DuplicateEndpoint,
    NoEndpointAvailable,
    PoliciesError,
    UnknownEndpoint,
    UnknownPolicy,
)
from policies.explanation import Explanation, Trace
from policies.facts import Endpoint, Outcome, OutcomeKind, Region, ReportedLoad, RequestFacts, Standing
from policies.fitness import Fitness
from policies.panic import Panic
from policies.policy import Policy, PolicyMaker
from policies.registry import describe, from_spec, known, make
from policies.router import Router
from policies.slow_start import SlowStart
from policies.state import EndpointState

__all__ = [
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
    "Fitness",
    "MonotonicClock",
    "NoEndpointAvailable",
    "Outcome",
    "OutcomeKind",
    "Panic",
    "PoliciesError",
    "Policy",
    "PolicyMaker",
    "Region",
    "ReportedLoad",
    "RequestFacts",
    "Router",
    "SlowStart",
    "Standing",
    "Trace",
    "UnknownEndpoint",
    "UnknownPolicy",
    "describe",
    "from_spec",
    "known",
    "make",
]
