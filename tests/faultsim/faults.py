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
Begin = Callable[["Simulation", Fault], Callable[[], None]]


def begin(simulation: Simulation, fault: Fault) -> None:
    """Begin a fault, and end it when its time is over."""
    end = KINDS[fault.kind](simulation, fault)
    simulation.timeline.after(fault.lasts, simulation.heal, fault, end)


def _at_hosts(begin: Callable[[Host, Fault], None], end: Callable[[Host], None] = lambda _: None) -> Begin:
    """A fault that begins and ends at each of its hosts."""

    def begin_all(simulation: Simulation, fault: Fault) -> Callable[[], None]:
        hosts = [simulation.hosts[number] for number in fault.hosts]
        for host in hosts:
            begin(host, fault)

        def over() -> None:
            for host in hosts:
                end(host)

        return over

    return begin_all


def _dial(host: Host, fault: Fault) -> None:
    host.dialling = fault.kind if fault.kind in ("hang", "slam") else "refuse"
    if fault.kind == "down":
        _reset(host, fault)


def _accept(host: Host) -> None:
    host.dialling = "accept"


def _reset(host: Host, fault: Fault) -> None:
    for end in host.alive():
        end.reset()


def _close_idle(host: Host, fault: Fault) -> None:
    for end in host.alive():
        if end.is_idle:
            end.leave()


def _slow(host: Host, fault: Fault) -> None:
    host.route.delay *= SLOWER


def _quick(host: Host) -> None:
    host.route.delay /= SLOWER


def _cut_clients(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    simulation.client_route.cut(fault.detail)
    return simulation.client_route.heal


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


KINDS: dict[str, Begin] = {
    **dict.fromkeys(("down", "refuse", "hang", "slam"), _at_hosts(_dial, _accept)),
    "reset": _at_hosts(_reset),
    "close idle": _at_hosts(_close_idle),
    "freeze": _at_hosts(lambda host, _: host.freeze(), Host.thaw),
    "cut": _at_hosts(lambda host, fault: host.route.cut(fault.detail), lambda host: host.route.heal()),
    "cut clients": _cut_clients,
    "slow": _at_hosts(_slow, _quick),
    "replace": _replace,
    "disable": _disable,
    "policy": _policy,
    "buffering": _buffering,
}
