"""Keys of the table `[balancer]`: which of them a simulated run reads, has no use for, or refuses.

A key that nothing here names is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from experiments.scenario.mechanisms import Mechanisms

NO_HEADS: Final = "requests are not written as bytes"

SIMULATED: Final = {"retries"} | {
    f"{table}.{key}"
    for table, keys in {
        "retry": "share per_second statuses",
        "hedging": "enabled quantile share minimum",
        "health_checks": "path status interval fast_interval timeout rise fall",
        "outlier_detection": "failures success_rate window min_requests latency base_time max_time",
        "panic": "threshold overprovisioning",
        "slow_start": "window minimum",
        "pool": "idle_timeout risk",
        "limits": "queue in_flight",
        "queue": "order",
        "concurrency": "adaptive initial minimum maximum tolerance",
        "timeouts": "connect first_byte attempt queue",
        "shared": "enabled every delay",
    }.items()
    for key in keys.split()
}
"""Keys that change the requests of a run; a test varies each of them."""

MEANINGLESS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("retry.body", "limits.body", "limits.buffer", "timeouts.body_idle", "timeouts.request_idle"),
        "requests have no body, and responses are short",
    ),
    **dict.fromkeys(("limits.head", "limits.fields", "limits.target", "timeouts.head"), NO_HEADS),
    **dict.fromkeys(
        ("queue.timeout_header", "queue.start_header", "queue.start_timeout"), "clients send no such field"
    ),
    **dict.fromkeys(("timeouts.keep_alive", "timeouts.linger"), "clients' connections are not simulated"),
    "retry.idempotency_key": "every request is a GET, which is idempotent",
    "retry.grpc_statuses": "no request is an RPC",
    "pool.heartbeat_method": "it is read with pool.heartbeat only, which is not simulated",
    "timeouts.tunnel_idle": "no request opens a tunnel",
    "timeouts.shutdown": "the balancer does not shut down during a run",
}
"""Keys that cannot change the requests of a run, with the reason."""

_REASONS: Final[Mapping[str, str]] = {
    "health_checks.grpc": "workers answer checks at health_checks.path",
    "health_checks.first_connect": "no connection is opened before the warm-up",
    **dict.fromkeys(("health_checks.host", "health_checks.fields", "health_checks.body"), NO_HEADS),
    **dict.fromkeys(("health_checks.port", "health_checks.scheme"), "workers have one port"),
    **dict.fromkeys(("pool.heartbeat", "pool.preconnect"), "no spare connections are kept"),  # in this order
    "retry.busy": "a refused request is a failure, which retry.statuses retries",
    "timeouts.total": "first_byte and attempt bound a request",
}
REFUSED: Final[Mapping[str, str]] = {
    **_REASONS,
    **{
        f"{table}.{key}": "nothing there reads it"
        for table, field in Mechanisms.model_fields.items()
        for key in getattr(field.annotation, "model_fields", ())
        if f"{table}.{key}" not in {*SIMULATED, *MEANINGLESS, *_REASONS}
    },
}
"""Keys that are not simulated, with what the simulator does instead."""

UNREAD: Final[Mapping[str, str]] = {"health_checks.first_connect": "health_checks.path"}
"""Refused key -> the key that, where it is set, keeps real processes from reading it too: then it is accepted."""

SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "retry": ("retries",),
    "hedging": ("hedging.enabled",),
    "health_checks": ("health_checks.path", "health_checks.grpc"),
    "outlier_detection": (
        "outlier_detection.failures",
        "outlier_detection.success_rate",
        "outlier_detection.latency",
    ),
    "concurrency": ("concurrency.adaptive",),
    "slow_start": ("slow_start.window",),
    "shared": ("shared.enabled",),
}
"""Tables of mechanisms, and the keys that are all zero, false or absent if a mechanism is off."""

READ_ANYWAY: Final = ("health_checks.fast_interval", "health_checks.timeout")
"""Keys that are read where their mechanism is off: connects are tried so after failures, without a path too."""

CHECKED_PATH: Final = "/healthz"
"""Path at which workers answer checks without taking a slot."""


def complaint_about(settings: Mapping[str, Any]) -> str | None:
    """Return why a simulated run refuses these settings of `[balancer]`: the first key that it would ignore.

    A value that is the key's default is accepted: it is the same as to leave the key out."""
    used, default = Mechanisms.model_validate(settings), Mechanisms()
    for key, instead in REFUSED.items():
        value = attrgetter(key)
        is_unread = key in UNREAD and attrgetter(UNREAD[key])(used)
        if value(used) != value(default) and not is_unread:
            return f"balancer.{key} is not simulated ({instead}); leave it out, or measure real processes"
    path = used.health_checks.path
    if path not in (None, CHECKED_PATH):
        return f"balancer.health_checks.path must be {CHECKED_PATH!r}, which workers answer, got {path!r}"
    return None


def read_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `[balancer]` without the other keys of mechanisms that are off."""
    used = Mechanisms.model_validate(settings)
    off = {table for table, keys in SWITCHES.items() if not any(attrgetter(key)(used) for key in keys)}
    return {
        name: {key: one for key, one in value.items() if f"{name}.{key}" in (*SWITCHES[name], *READ_ANYWAY)}
        if name in off
        else value
        for name, value in settings.items()
    }
