"""Faults of hosts, routes and the balancer: each as a beginning that returns its end.

Every fault ends, and then everything is as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.limits import BufferingLimits
from balancer.config.schema.policy_spec import PolicySpec
from policies.errors import PoliciesError
from tests.faultsim.plan import Fault
from tests.faultsim.workers import Host
from tests.support.wireless import reload_with

if TYPE_CHECKING:
    from tests.faultsim.simulation import Simulation

SLOWER = 20


def begin(simulation: Simulation, fault: Fault) -> None:
    """Begin a fault, and end it when its time is over."""
    end = KINDS[fault.kind](simulation, fault)
    simulation.timeline.after(fault.lasts, simulation.heal, fault, end)


def _hosts(simulation: Simulation, fault: Fault) -> list[Host]:
    return [simulation.hosts[number] for number in fault.hosts]


def _dialling(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    for host in _hosts(simulation, fault):
        host.dialling = fault.kind if fault.kind in ("hang", "slam") else "refuse"
        if fault.kind == "down":
            for end in host.alive():
                end.reset()

    def over() -> None:
        for host in _hosts(simulation, fault):
            host.dialling = "accept"

    return over


def _reset(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    for host in _hosts(simulation, fault):
        for end in host.alive():
            end.reset()
    return lambda: None


def _close_idle(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    for host in _hosts(simulation, fault):
        for end in host.alive():
            if end.is_idle:
                end.leave()
    return lambda: None


def _freeze(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    for host in _hosts(simulation, fault):
        host.freeze()

    def over() -> None:
        for host in _hosts(simulation, fault):
            host.thaw()

    return over


def _cut(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    for host in _hosts(simulation, fault):
        host.route.cut(fault.detail)

    def over() -> None:
        for host in _hosts(simulation, fault):
            host.route.heal()

    return over


def _cut_clients(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    simulation.client_route.cut(fault.detail)
    return simulation.client_route.heal


def _slow(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    for host in _hosts(simulation, fault):
        host.route.delay *= SLOWER

    def over() -> None:
        for host in _hosts(simulation, fault):
            host.route.delay /= SLOWER

    return over


def _replace(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    simulation.replace([EndpointConfig(**one) for one in fault.detail])
    return lambda: simulation.replace(simulation.endpoints)  # not those before: replacements may overlap


def _disable(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    ids = [f"e{number}" for number in fault.hosts]

    def enable(is_enabled: bool) -> None:
        for endpoint_id in ids:
            try:
                simulation.cluster.router.set_enabled(endpoint_id, is_enabled)
            except PoliciesError:  # it has been replaced meanwhile
                continue

    enable(False)
    return lambda: enable(True)


def _policy(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    before = simulation.policy
    simulation.apply_policy(PolicySpec(**fault.detail))
    return lambda: simulation.apply_policy(before)


def _buffering(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    control_plane = simulation.control_plane
    before = control_plane.config.settings.buffering

    def apply(limits: BufferingLimits) -> None:
        reload_with(control_plane, buffering=limits)

    apply(BufferingLimits(**fault.detail))
    return lambda: apply(before)


KINDS: dict[str, Callable[[Simulation, Fault], Callable[[], None]]] = {
    "down": _dialling,
    "refuse": _dialling,
    "hang": _dialling,
    "slam": _dialling,
    "reset": _reset,
    "close idle": _close_idle,
    "freeze": _freeze,
    "cut": _cut,
    "cut clients": _cut_clients,
    "slow": _slow,
    "replace": _replace,
    "disable": _disable,
    "policy": _policy,
    "buffering": _buffering,
}
