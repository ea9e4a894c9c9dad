"""The tables [clusters.NAME] of the configuration: named clusters of endpoints, for the routes.

A named cluster has the keys that concern its endpoints. A key that it does not give has the value of the top level, so
`[timeouts]` holds for all clusters and `[clusters.api.timeouts]` for one; endpoints and discovery are never inherited,
and the cookie of `[sticky]` with the cluster's name behind it.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.discovery import DiscoveryConfig, check_unique
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.config.schema.health import (
    NOT_OF_GRPC,
    HealthChecksConfig,
    OutlierDetectionConfig,
    PanicConfig,
    SlowStartConfig,
)
from balancer.config.schema.limits import BufferingLimits, Limits, Timeouts
from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.pool import PoolConfig
from balancer.config.schema.queue import ConcurrencyConfig, QueueConfig
from balancer.config.schema.retries import HedgingConfig, RetryConfig
from balancer.config.schema.section import TOKEN, Name, Section
from balancer.config.schema.sections import LoadProbesConfig
from balancer.config.schema.sticky import KeyConfig, StickyConfig
from balancer.config.sources import policy_table
from policies import registry

OWN: Final = ("endpoints", "discovery")
"""Keys that a named cluster does not inherit."""

EXCLUDED: Final = {
    "health_checks.grpc": tuple(f"health_checks.{key}" for key in NOT_OF_GRPC),
    **{f"health_checks.{key}": ("health_checks.grpc",) for key in NOT_OF_GRPC},
    "sticky.cookie": ("sticky.header", "key.by", "key.name"),
    "sticky.header": ("sticky.cookie", "key.by", "key.name"),
    "key.by": ("key.name", "sticky.cookie", "sticky.header"),
}
"""Keys that a cluster does not inherit if it gives the key before them, which they do not go with."""

OF_CONNECTIONS: Final = {
    "timeouts": ("head", "request_idle", "keep_alive", "linger", "shutdown"),
    "limits": ("head", "fields", "target", "buffer", "clients"),
    "buffering": ("total",),
    "queue": ("timeout_header", "start_header", "start_timeout"),
}
"""Keys of these tables that concern client connections, whose requests may go to any cluster."""

_COOKIE: Final = re.compile(TOKEN)

SESSION_FIELD: Final = "X-Session-ID"
INFERENCE_POLICY: Final = "pending-tokens"
INFERENCE_SHUTDOWN: Final = 300.0
"""Seconds for which answers may go on after SIGTERM, where any cluster is one for inference."""


class ClusterSettings(Section):
    """What one cluster of endpoints is configured with."""

    home_region: Name | None = Field(
        default=None,
        description="name | region of this balancer's clients; `region-aware` and `steelyard` prefer it",
    )
    policy: PolicySpec = Field(
        default=PolicySpec(), description="name or table | routing policy; see [Policies](#policies)"
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="number of further endpoints that a request may be sent to, where that is safe; see "
        "[Retries](#retries)",
    )
    kind: Literal["http", "inference"] = Field(
        default="http",
        description="kind of its workers; `inference`, for servers of language models, has other defaults; see "
        "[Inference](#inference)",
    )
    half_close: bool = Field(
        default=True,
        description="whether a client of HTTP/1.1 that has sent its FIN may still read its response; false: it has "
        'left, and the request is abandoned at once. Default with `kind = "inference"`: false',
    )
    endpoints: tuple[EndpointConfig, ...] = ()
    discovery: DiscoveryConfig = DiscoveryConfig()
    upstream_tls: UpstreamTlsConfig = UpstreamTlsConfig()
    timeouts: Timeouts = Timeouts()
    retry: RetryConfig = RetryConfig()
    hedging: HedgingConfig = HedgingConfig()
    limits: Limits = Limits()
    buffering: BufferingLimits = BufferingLimits()
    queue: QueueConfig = QueueConfig()
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    pool: PoolConfig = PoolConfig()
    health_checks: HealthChecksConfig = HealthChecksConfig()
    load_probes: LoadProbesConfig = LoadProbesConfig()
    outlier_detection: OutlierDetectionConfig = OutlierDetectionConfig()
    panic: PanicConfig = PanicConfig()
    slow_start: SlowStartConfig = SlowStartConfig()
    sticky: StickyConfig = StickyConfig()
    key: KeyConfig = KeyConfig()

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        check_unique(self.endpoints)
        if self.key.by is not None and (self.sticky.cookie or self.sticky.header):
            raise ValueError("key.by: give [sticky], which has its own key, or [key], not both")
        for table, values in self.kind_defaults.items():
            self._derive_in(table, **values)
        return self

    def _derive_in(self, table: str, **values: Any) -> None:
        """Set those keys of a table that are not given; "" is the cluster itself."""
        if table:  # a copy, because the default is shared
            self.__dict__[table] = section = getattr(self, table).model_copy()
            section._derive(**values)
        else:
            self._derive(**values)

    @property
    def kind_defaults(self) -> dict[str, dict[str, Any]]:
        """The defaults that `kind` has instead of the usual ones, by table; "" has those outside tables.

        An answer may take minutes to its first byte, and one that is preempted pauses. A request that was refused as
        busy has cost its worker nothing, so the retry budget is as large as the load, and suffices to ask a hundred
        engines once a second.
        """
        if self.kind == "http":
            return {}
        has_key = self.key._has("by", "name") or self.sticky.cookie or self.sticky.header
        most = (
            self.buffering.request if self.buffering._has("request") else min(1 << 20, self.buffering.total)
        )
        return {
            "": {"half_close": False, "retries": 4}
            | ({"policy": PolicySpec(name=INFERENCE_POLICY)} if INFERENCE_POLICY in registry.TABLE else {}),
            "timeouts": {"first_byte": 1800.0, "body_idle": 300.0, "shutdown": INFERENCE_SHUTDOWN},
            "buffering": {"request": most},
            "retry": {"busy": (429, 503), "share": 1.0, "per_second": 100.0, "body": most},
            "key": {} if has_key else {"by": "header", "name": SESSION_FIELD},
        }

    @property
    def has_endpoints(self) -> bool:
        """Whether endpoints or a source of them are configured."""
        return bool(self.endpoints) or self.discovery.is_configured


def with_inherited(document: Any) -> Any:
    """Return a document in which each named cluster has the keys of the top level that it does not give itself.

    Raises ValueError for a key of a cluster that concerns client connections.
    """
    clusters = document.get("clusters") if isinstance(document, dict) else None
    if not isinstance(clusters, dict):
        return document
    shared = {
        key: document[key] for key in ClusterSettings.model_fields if key in document and key not in OWN
    }
    return document | {
        "clusters": {name: _with_inherited(str(name), cluster, shared) for name, cluster in clusters.items()}
    }


def _with_inherited(name: str, cluster: Any, shared: dict[str, Any]) -> Any:
    if not isinstance(cluster, dict):
        return cluster
    for table, keys in OF_CONNECTIONS.items():
        given = cluster.get(table)
        for key in keys:
            if isinstance(given, dict) and key in given:
                raise ValueError(
                    f"clusters.{name}.{table}.{key}: concerns client connections, which all clusters share; "
                    f"set {table}.{key}"
                )
    own = cluster | {"policy": policy_table(cluster["policy"])} if "policy" in cluster else cluster
    places = {f"{table}.{key}" for table, value in own.items() if isinstance(value, dict) for key in value}
    excluded = {other for place in places & EXCLUDED.keys() for other in EXCLUDED[place]}
    whole = {
        table: {key: each for key, each in value.items() if f"{table}.{key}" not in excluded}
        if isinstance(value, dict)
        else value
        for table, value in shared.items()
    }
    sticky = whole.get("sticky")
    if isinstance(sticky, dict) and _COOKIE.fullmatch(str(sticky.get("cookie", ""))):
        # Clusters would overwrite a cookie that they share.
        whole["sticky"] = sticky | {"cookie": f"{sticky['cookie']}-{name}"}
    for key, value in own.items():
        below = whole.get(key)
        is_other_policy = key == "policy" and isinstance(value, dict) and "name" in value
        if isinstance(value, dict) and isinstance(below, dict) and not is_other_policy:
            value = below | value
        whole[key] = value
    return whole
