"""Renamed configuration keys: an old key is refused with the name that replaces it. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

RENAMED: Final = {
    "checks": "health_checks",
    "control": "admin",
    "discovery.dns.longest": "discovery.dns.max_ttl",
    "discovery.file.may_be_empty": "discovery.file.allow_empty",
    "ejection": "outlier_detection",
    "ejection.longest": "outlier_detection.max_time",
    "ejection.requests": "outlier_detection.min_requests",
    "ejection.time": "outlier_detection.base_time",
    "explain.answer": "explain.response_header",
    "hedging.least": "hedging.minimum",
    "load_probes.most": "load_probes.max_in_flight",
    "log.control": "log.admin",
    "names.ahead": "names.prefetch",
    "names.longest": "names.max_ttl",
    "names.negative": "names.negative_ttl",
    "names.shortest": "names.min_ttl",
    "names.stale": "names.max_stale",
    "panic.share": "panic.threshold",
    "pool.backoff": "pool.max_backoff",
    "pool.idle": "pool.idle_timeout",
    "pool.requests": "pool.max_requests",
    "pool.warm": "pool.preconnect",
    "queue.limit_header": "queue.timeout_header",
    "queue.start_limit": "queue.start_timeout",
    "shedding": "admission",
    "slow_start.least": "slow_start.minimum",
    "tls.minimum": "tls.min_version",
    "watch": "route_watch",
    "watch.every": "route_watch.interval",
    "watch.lasting": "route_watch.duration",
    "watch.least": "route_watch.minimum",
}
"""New dotted key by old dotted key, without the indexes of lists. A table stands for its keys that are not listed."""

_REPLACED: Final = RENAMED | {
    f"{RENAMED[table]}.{key}": new
    for table, _, key in (old.partition(".") for old in RENAMED)
    if key and table in RENAMED
    for new in (RENAMED[f"{table}.{key}"],)
}
"""`RENAMED`, and the old keys within tables that already have their new name."""

SEPARATOR: Final = "__"
"""Separator between a table and its key in the name of an environment variable."""


def renamed(key: str) -> str | None:
    """Return the dotted key that replaces `key`, or None if it was not renamed."""
    table, rest = key, ""
    while table not in _REPLACED:
        table, dot, last = table.rpartition(".")
        if not dot:
            return None
        rest = f".{last}{rest}"
    return _REPLACED[table] + rest


def renamed_at(place: Sequence[int | str]) -> str | None:
    """Return the dotted key that replaces the one at `place` of a document; the tables of a sidecar's origin are those
    of the whole.
    """
    names = [part for part in place if isinstance(part, str)]
    prefix = "origins." if names[:1] == ["origins"] else ""
    new = renamed(".".join(names[1:] if prefix else names))
    return None if new is None else prefix + new


def renamed_variable(variables: Iterable[str], prefix: str) -> str | None:
    """Return the message for the first environment variable of a renamed key, or None. `prefix`: BALANCER_."""
    for variable in sorted(variables):
        if variable.upper().startswith(prefix):
            new = renamed(variable[len(prefix) :].lower().replace(SEPARATOR, "."))
            if new is not None:
                return f"{variable}: renamed to {prefix}{new.upper().replace('.', SEPARATOR)}"
    return None
