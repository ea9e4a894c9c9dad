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
    "policies/concurrency.py",
    "policies/facts.py",
    "policies/latency.py",
    "policies/line.py",
    "policies/load.py",
    "policies/pace.py",
    "policies/router.py",
    "policies/state.py",
    "policies/two_choices.py",
    "balancer/applicant.py",
    "balancer/attempt.py",
    "balancer/body.py",
    "balancer/chunks.py",
    "balancer/client.py",
    "balancer/downstream.py",
    "balancer/exchange.py",
    "balancer/kept_body.py",
    "balancer/logged_exchange.py",
    "balancer/offer.py",
    "balancer/fields.py",
    "balancer/gate.py",
    "balancer/forwarding.py",
    "balancer/internal_fields.py",
    "balancer/pool.py",
    "balancer/request_fields.py",
    "balancer/request_head.py",
    "balancer/request_reader.py",
    "balancer/response_head.py",
    "balancer/stated_fields.py",
    "balancer/tls_transport.py",
    "balancer/tunnel.py",
    "balancer/turn.py",
    "balancer/unit.py",
    "balancer/upstream.py",
    "balancer/waiting.py",
]
"""Policies stay interpreted: the registry reads their options from their signatures, and they are yours to write."""


def extensions() -> list[Any]:
    """The extension, if it is asked for."""
    if os.environ.get("STEELYARD_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return list(mypycify(HOT, opt_level="3"))


setup(ext_modules=extensions())
