"""Compiled build of the hot path from the same source, on request.

    make compiled        or: STEELYARD_COMPILE=1 pip install --no-build-isolation .

mypyc makes one C extension of the modules that every request passes through. The pure build is the default and the one
that is developed; the same tests run on both.
"""

from __future__ import annotations

import os
from typing import Any

from setuptools import setup

HOT = [
    "policies/routing/assignment.py",
    "policies/clock.py",
    "policies/endpoint/concurrency_limit.py",
    "policies/facts.py",
    "policies/routing/active_policy.py",
    "policies/stats/latency.py",
    "policies/overload/wait_queue.py",
    "policies/stats/load.py",
    "policies/routing/endpoint_set.py",
    "policies/stats/rate.py",
    "policies/routing/router.py",
    "policies/endpoint/state.py",
    "policies/least_cost.py",
    "policies/two_choices.py",
    "balancer/exchange/attempt.py",
    "balancer/http1/body.py",
    "balancer/http1/chunks.py",
    "balancer/downstream/pipelined.py",
    "balancer/http1/client.py",
    "balancer/exchange/client_connection.py",
    "balancer/downstream/connection.py",
    "balancer/exchange/exchange.py",
    "balancer/exchange/body_buffer.py",
    "balancer/exchange/logged_exchange.py",
    "balancer/exchange/pending_upgrade.py",
    "balancer/field_names.py",
    "balancer/http1/fields.py",
    "balancer/exchange/admission.py",
    "balancer/http1/internal_fields.py",
    "balancer/http1/field_list.py",
    "balancer/upstream/connection_counts.py",
    "balancer/upstream/request.py",
    "balancer/upstream/stream.py",
    "balancer/upstream/connection_pool.py",
    "balancer/upstream/connector.py",
    "balancer/upstream/pool.py",
    "balancer/upstream/pools.py",
    "balancer/upstream/multiplexed_pool.py",
    "balancer/http1/request_fields.py",
    "balancer/http1/request_head.py",
    "balancer/http1/request_reader.py",
    "balancer/http1/response_head.py",
    "balancer/http1/request_hints.py",
    "balancer/admin/connection.py",
    "balancer/sidecar/downstream.py",
    "balancer/tls/transport.py",
    "balancer/exchange/tunnel.py",
    "balancer/downstream/request_handler.py",
    "balancer/exchange/proxy.py",
    "balancer/upstream/connection.py",
    "balancer/exchange/affinity.py",
    "balancer/exchange/wait_queue.py",
    "experiments/simulator/attempt.py",
    "experiments/simulator/client.py",
    "experiments/simulator/clock.py",
    "experiments/simulator/columns.py",
    "experiments/load/demand.py",
    "experiments/simulator/events.py",
    "experiments/simulator/hedges.py",
    "experiments/simulator/idle.py",
    "experiments/simulator/worker_connections.py",
    "experiments/simulator/simulation.py",
    "experiments/simulator/station.py",
    "experiments/simulator/balancer.py",
    "experiments/simulator/worker.py",
]
"""Modules to compile. Most policies stay interpreted: the registry reads their options from their signatures."""


def extensions() -> list[Any]:
    """Return the extension if STEELYARD_COMPILE is 1."""
    if os.environ.get("STEELYARD_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return list(mypycify(HOT, opt_level="3"))


setup(ext_modules=extensions())
