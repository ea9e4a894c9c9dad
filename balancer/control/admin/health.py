"""Health of the balancer in one document: readiness, the number of endpoints in each condition, panic.

The summary is made from the status of the endpoints, also where that is merged from several processes, so that both
agree.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from balancer.cluster.condition import DOWN, Condition, condition_of, condition_text, may_answer
from policies.endpoint.state import EndpointState

if TYPE_CHECKING:
    from balancer.control.control_plane import ControlPlane

SERVING, PANIC, DRAINING, NO_ENDPOINT = "serving", "panic", "draining", "no endpoint can answer"

VERBS = {
    Condition.FAILING_CHECKS.value: "fail their checks",
    Condition.EJECTED.value: "are ejected",
    Condition.UNREACHABLE.value: "are unreachable",
}


def endpoint_condition(control_plane: ControlPlane, state: EndpointState) -> dict[str, str]:
    """Return the keys `condition` and `condition_text` of an endpoint."""
    cluster = control_plane.cluster
    pool, check = cluster.pools.by_id[state.id], control_plane.checks.by_id.get(state.id)
    condition = condition_of(state, pool)
    text = condition_text(condition, state, pool, check.state if check is not None else None, cluster.now())
    priority = state.endpoint.priority
    backup = f" (backup, priority {priority})" if priority else ""
    return {"condition": condition.value, "condition_text": text + backup}


def can_serve(control_plane: ControlPlane) -> bool:
    """Return whether some endpoint may answer a request."""
    cluster = control_plane.cluster
    pools, now = cluster.pools.by_id, cluster.now()
    return any(
        may_answer(state, condition_of(state, pools[state.id]), now) for state in cluster.router.states
    )


def readiness(control_plane: ControlPlane) -> str:
    """Return one of SERVING, PANIC, DRAINING and NO_ENDPOINT; the balancer is ready in the first two.

    With named clusters it is ready if one of them is: the requests for the others can be served nowhere else either.
    """
    if control_plane.cluster.process.is_draining:
        return DRAINING
    ready = [plane for plane in (control_plane, *control_plane.named.values()) if can_serve(plane)]
    if not ready:
        return NO_ENDPOINT
    return PANIC if all(plane.cluster.router.health.panic for plane in ready) else SERVING


def health_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the health that a status document shows: `healthy`, the reason, counts by condition, and a summary."""
    reason = document["readiness"]
    clusters = (document, *document.get("clusters", ()))
    counts = Counter(each["condition"] for cluster in clusters for each in cluster["endpoints"])
    named = {condition.value: counts[condition.value] for condition in Condition if counts[condition.value]}
    total = sum(named.values())
    parts = ", ".join(f"{number} {name}" for name, number in named.items())
    summary = f"{reason}: {total} endpoint{'s' * (total != 1)}{f' ({parts})' if parts else ''}"
    panic = panic_text(document)
    return {
        "healthy": reason in (SERVING, PANIC),
        "reason": reason,
        "endpoints": named,
        "summary": f"{summary}; {panic}" if panic else summary,
    }


def panic_text(document: dict[str, Any]) -> str | None:
    """Return where health is ignored and why, in one line; None without a panic."""
    panic, endpoints = document["panic"], document["endpoints"]
    if panic["everywhere"]:
        return f"panic: health is ignored, {_down_text(endpoints)}"
    if not panic["regions"]:
        return None
    there = [each for each in endpoints if each["region"] in panic["regions"]]
    return f"panic in {', '.join(panic['regions'])}: health is ignored there, {_down_text(there)}"


def _down_text(endpoints: list[dict[str, Any]]) -> str:
    down = {condition.value for condition in DOWN}
    enabled = [each for each in endpoints if each["state"] == "ready"]
    counts = Counter(each["condition"] for each in enabled if each["condition"] in down)
    if not counts:
        return "its endpoints are only just back"
    number = sum(counts.values())
    if len(counts) == 1:
        [name] = counts
        which = "all " if number == len(enabled) > 1 else ""
        of = "" if number == len(enabled) else f" of {len(enabled)}"
        return f"{which}{number}{of} endpoints {VERBS[name]}"
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{number} of {len(enabled)} endpoints are down: {kinds}"
