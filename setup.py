"""What pyproject.toml cannot say: the compiled build, of the same source, for whoever asks for it.

    make compiled        or: STEELYARD_COMPILE=1 pip install --no-build-isolation .

mypyc makes one C extension of the modules that every request passes through. The pure source stays the whole truth:
it is the default, it is what is read and developed, and the same tests run on both.
"""

from __future__ import annotations

import os
from typing import Any

from setuptools import setup

HOT = [
    "policies/routing/assignment.py",
    "policies/routing/clock.py",
    "policies/overload/concurrency_limit.py",
    "policies/routing/facts.py",
    "policies/routing/active_policy.py",
    "policies/stats/latency.py",
    "policies/overload/wait_queue.py",
    "policies/stats/load.py",
    "policies/routing/endpoint_set.py",
    "policies/stats/rate.py",
    "policies/routing/router.py",
    "policies/routing/endpoint_state.py",
    "policies/steelyard.py",
    "policies/two_choices.py",
    "balancer/requests/applicant.py",
    "balancer/requests/attempt.py",
    "balancer/messages/body.py",
    "balancer/messages/chunks.py",
    "balancer/clients/ahead.py",
    "balancer/clients/client.py",
    "balancer/clients/connection.py",
    "balancer/clients/downstream.py",
    "balancer/requests/exchange.py",
    "balancer/requests/kept_body.py",
    "balancer/requests/logged_exchange.py",
    "balancer/clients/offer.py",
    "balancer/messages/fields.py",
    "balancer/requests/gate.py",
    "balancer/requests/forwarding.py",
    "balancer/messages/internal_fields.py",
    "balancer/messages/outline.py",
    "balancer/connections/accounts.py",
    "balancer/connections/errand.py",
    "balancer/connections/pool.py",
    "balancer/connections/pools.py",
    "balancer/connections/shared_pool.py",
    "balancer/messages/request_fields.py",
    "balancer/messages/request_head.py",
    "balancer/messages/request_reader.py",
    "balancer/messages/response_head.py",
    "balancer/messages/stated_fields.py",
    "balancer/control/downstream.py",
    "balancer/sidecar/downstream.py",
    "balancer/tls/transport.py",
    "balancer/requests/tunnel.py",
    "balancer/clients/turn.py",
    "balancer/unit.py",
    "balancer/connections/upstream.py",
    "balancer/requests/stickiness.py",
    "balancer/requests/waiting.py",
    "experiments/simulator/attempt.py",
    "experiments/simulator/client.py",
    "experiments/simulator/clock.py",
    "experiments/simulator/columns.py",
    "experiments/simulator/demand.py",
    "experiments/simulator/happenings.py",
    "experiments/simulator/hedges.py",
    "experiments/simulator/idle.py",
    "experiments/simulator/post.py",
    "experiments/simulator/simulation.py",
    "experiments/simulator/station.py",
    "experiments/simulator/unit.py",
    "experiments/simulator/worker.py",
]
"""Policies stay interpreted: the registry reads their options from their signatures, and they are yours to write."""


def extensions() -> list[Any]:
    """The extension, if it is asked for."""
    if os.environ.get("STEELYARD_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return list(mypycify(HOT, opt_level="3"))


setup(ext_modules=extensions())
