"""The tables [[routes]] of the configuration: which requests go to which cluster, are redirected or answered here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from ipaddress import IPv6Address
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, IPvAnyNetwork, StringConstraints, model_validator

from balancer.config.schema.field_edits import FieldEdits, RequestFieldEdits, ResponseFieldEdits
from balancer.config.schema.route_parts import (
    AuthConfig,
    Method,
    MirrorConfig,
    OwnBody,
    Weight,
    check_weights,
)
from balancer.config.schema.section import Name, Section, require_unique
from balancer.config.schema.sticky import KeyConfig
from balancer.syntax.printable import with_digits
from balancer.syntax.urls import host_in, normalized

DEFAULT: Final = "default"
"""Name of the default cluster in routes, status, metrics and commands."""

LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")
"""A label of a host name, which neither begins nor ends with a hyphen."""


def _host(host: str) -> str:
    host = host.lower().removesuffix(".")
    labels = host.removeprefix("*.").split(".")
    is_name = len(host) <= 253 and all(
        LABEL.fullmatch(label) and label.strip("-") == label for label in labels
    )
    if not (is_name or is_ipv6(host)):
        raise ValueError(
            f"must be a name such as example.org or *.example.org, without a port, got '{host:.60}'"
        )
    return host if is_name else host_in(host.encode()).decode()


def is_ipv6(host: str) -> bool:
    """Return whether the host is an IPv6 address in brackets."""
    try:
        return host.startswith("[") and host.endswith("]") and bool(IPv6Address(host[1:-1]))
    except ValueError:
        return False


def _path(path: str) -> str:
    wanted = normalized(path.encode()).decode()
    if wanted != path:
        raise ValueError(
            f"must be normalized, '{wanted:.60}': that is what paths of requests are compared as"
        )
    if path.endswith("/*"):
        raise ValueError(f"must not end in '/*': prefix = '{path[:-2] or '/':.60}' takes all paths below it")
    return path


Host = Annotated[str, AfterValidator(_host)]
Path = Annotated[str, StringConstraints(pattern=r"^/[!-\"$->@-~]*$", max_length=2048), AfterValidator(_path)]
FieldName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~*-]+$", max_length=128, to_lower=True)
]
FieldValue = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=1024)]

ParameterName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ParameterValue = Annotated[str, StringConstraints(max_length=1024)]

HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host")
)
"""Fields that a route cannot ask for: those of one connection, and Host, which has a key of its own."""


class RedirectConfig(Section):
    """A redirect to another scheme, host or path; what is not given stays, as the query does. Requests that ask for
    all of it already do not match."""

    scheme: Literal["http", "https"] | None = Field(
        default=None, description="target: redirect to this scheme"
    )
    host: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(:[0-9]{1,5})?$")] | None = Field(
        default=None,
        description="host or host:port | target: redirect to this host",
    )
    path: Path | None = Field(default=None, description="path | target: redirect to this path")
    replace_prefix: Path | None = Field(
        default=None, description="path | target: redirect to the path with this in place of `prefix`"
    )
    status: Literal[301, 302, 303, 307, 308] = Field(default=308, description="status of the redirect")

    @model_validator(mode="after")
    def _leads_elsewhere(self) -> Self:
        if not self._has("scheme", "host", "path", "replace_prefix"):
            raise ValueError("scheme, host, path, replace_prefix: give one of them or more")
        if self.path is not None and self.replace_prefix is not None:
            raise ValueError("replace_prefix: give path or replace_prefix, not both")
        return self

    def leads_to(self, scheme: str | None, host: str | None, path: str | None, prefix: str | None) -> bool:
        """Return whether it leads to where all requests with this scheme, host, path and prefix are already."""
        if self.host is not None and host != host_in(self.host.encode()).decode():
            return False
        if self.path not in (None, path) or self.scheme not in (None, scheme):
            return False
        return self.replace_prefix is None or self.replace_prefix.rstrip("/") == (prefix or "").rstrip("/")

    @property
    def wanted(self) -> str:
        """The first part of the address that the redirect changes to, for messages."""
        return self.path or self.replace_prefix or self.host or f"the scheme {self.scheme}"

    def __str__(self) -> str:
        """Where it leads, as `balancer check` lists it."""
        new = self.path or (f"{self.replace_prefix.removesuffix('/')}/*" if self.replace_prefix else "")
        url = f"{self.scheme or '*'}://{self.host or '*'}" if self.scheme or self.host else ""
        return f"redirect {self.status} to {url}{new}"


class AnswerConfig(OwnBody):
    """A fixed response."""

    status: int = Field(default=200, ge=200, le=599, description="target: a fixed response with this status")

    @model_validator(mode="after")
    def _may_have_a_body(self) -> Self:
        for key in ("body", "file"):
            if getattr(self, key) and self.status in (204, 205, 304):
                raise ValueError(f"{key}: a response with status {self.status} has none")
        return self


class RouteConfig(Section):
    """A route: conditions, which must all hold, and what is done with requests that meet them.

    Of all routes that match, the most specific one is taken, whatever their order: first by host (exact, then the
    longest suffix, then any), then by path (exact, then the longest prefix), then by the number of fields in `headers`,
    then by that of parameters in `query`, then one with `model`, then one with `methods`, then one with `scheme`, then
    one with `clients`.
    """

    host: Host | None = Field(
        default=None, description="name | condition: host, exactly, or `*.suffix`; see [Routes](#routes)"
    )
    path: Path | None = Field(default=None, description="path | condition: the exact path")
    prefix: Path | None = Field(
        default=None,
        description="path | condition: beginning of the path, in whole segments",
    )
    methods: tuple[Method, ...] = Field(
        default=(), description="list of methods | condition: one of these methods; empty: any"
    )
    headers: dict[FieldName, FieldValue] = Field(
        default={}, description='table | condition: values of request fields; `"*"`: any value'
    )
    query: dict[ParameterName, ParameterValue] = Field(
        default={}, description='table | condition: values of parameters of the query; `"*"`: any value'
    )
    model: FieldValue | None = Field(
        default=None,
        description="name | condition: `model` in the JSON of the body, exactly; see [Inference](#inference)",
    )
    scheme: Literal["http", "https"] | None = Field(
        default=None, description="condition: scheme that the client used"
    )
    clients: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="list of networks | condition: address of the client, behind `trusted_proxies` that of the last one"
        " which is no trusted proxy",
    )
    cluster: Name | None = Field(
        default=None,
        description="name | target: a named cluster, or `default`, the endpoints of the top level; each route has one "
        "target",
    )
    split: dict[Name, Weight] = Field(
        default={},
        description="table | target: clusters with their weights, such as `{ stable = 90, next = 10 }`; see "
        "[Splits](#splits)",
    )
    canary: Name | None = Field(
        default=None,
        description="name | cluster of `split` that gets no more requests when it is worse than the others",
    )
    rate_limit: Name | None = Field(
        default=None,
        description="name | one of `rate_limits`, for the requests of this route; see [Rate limits](#rate-limits)",
    )
    strip_prefix: bool = Field(default=False, description="removal of `prefix` from the path")
    replace_prefix: Path | None = Field(
        default=None, description="path | replacement of `prefix` in the path"
    )
    split_key: KeyConfig | None = None
    redirect: RedirectConfig | None = None
    answer: AnswerConfig | None = None
    mirror: MirrorConfig | None = None
    auth: AuthConfig | None = None
    request_fields: RequestFieldEdits = RequestFieldEdits()
    response_fields: ResponseFieldEdits = ResponseFieldEdits()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        targets = [
            key for key in ("cluster", "split", "redirect", "answer") if getattr(self, key) not in (None, {})
        ]
        if len(targets) != 1:
            raise ValueError(
                f"cluster: give one of cluster, split, redirect and answer, got {' and '.join(targets) or 'none'}"
            )
        self._check_split()
        if self.path is not None and self.prefix is not None:
            raise ValueError("prefix: give path or prefix, not both")
        if self.model is not None and find_spec("msgspec") is None:
            raise ValueError("model: needs msgspec, which is not installed: pip install '.[inference]'")
        require_unique(self.methods, "methods: {value} is there twice")
        hop = HOP_BY_HOP.intersection(self.headers)
        if hop:
            raise ValueError(f"headers.{min(hop)}: cannot be a condition; a host is given by 'host'")
        if self.strip_prefix and self.replace_prefix is not None:
            raise ValueError("replace_prefix: give strip_prefix or replace_prefix, not both")
        if (self.strip_prefix or self.replace_prefix is not None) and (
            self.prefix is None or not self.clusters
        ):
            key = "strip_prefix" if self.strip_prefix else "replace_prefix"
            raise ValueError(f"{key}: needs prefix and cluster or split")
        redirect = self.redirect
        if redirect is not None and redirect.replace_prefix is not None and self.prefix is None:
            raise ValueError("redirect.replace_prefix: needs prefix")
        if redirect is not None and redirect.leads_to(self.scheme, self.host, self.path, self.prefix):
            raise ValueError(f"redirect: all requests of this route already ask for {redirect.wanted}")
        if self.request_fields and not self.clusters:
            raise ValueError("request_fields: needs cluster or split")
        if self.mirror is not None and (not self.clusters or self.mirror.cluster in self.clusters):
            raise ValueError("mirror.cluster: needs cluster or split, and must be another one")
        if self.auth is not None and not self.clusters:
            raise ValueError("auth: needs cluster or split")
        return self

    def _check_split(self) -> None:
        """Check the keys of a split. Raises ValueError."""
        if not self.split and (self.split_key is not None or self.canary is not None):
            raise ValueError(f"{'canary' if self.split_key is None else 'split_key'}: needs split")
        if self.split:
            check_weights("split", self.split)
        if self.canary is not None:
            check_cluster("canary", self.canary, self.clusters)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that its requests go to."""
        return tuple(self.split) if self.cluster is None else (self.cluster,)

    @property
    def place(self) -> tuple[str | None, str | None, str | None]:
        """Host and path in a form that can be compared."""
        return self.host, self.path, (self.prefix or "").removesuffix("/") if self.path is None else None

    @property
    def conditions(self) -> tuple[Any, ...]:
        """The conditions in a form that can be compared."""
        fields, query = frozenset(self.headers.items()), frozenset(self.query.items())
        methods, clients = frozenset(self.methods), frozenset(self.clients)
        return *self.place, methods, fields, self.scheme, query, clients, self.model

    @property
    def specificity(self) -> tuple[int, int, bool, bool, bool, bool]:
        """Rank among routes of one host and path: the larger is the more specific."""
        fields, query, has_model = len(self.headers), len(self.query), self.model is not None
        return fields, query, has_model, bool(self.methods), self.scheme is not None, bool(self.clients)

    def rank(self) -> tuple[Any, ...]:
        """Return a key that sorts the most specific route first."""
        host, path, prefix = self.place
        return (
            host is None, (host or "").startswith("*"), -len(host or ""), path is None, -len(path or prefix or ""),
            *(-each for each in self.specificity),
        )  # fmt: skip

    @property
    def target(self) -> str:
        """What is done with its requests, as `balancer check` lists it."""
        parts = [self._target]
        if self.rate_limit is not None:
            parts.append(f"rate limit {self.rate_limit}")
        parts += [f"{kind} fields: {edits}" for kind, edits in self._edits if edits]
        return ", ".join(parts)

    @property
    def _edits(self) -> tuple[tuple[str, FieldEdits], ...]:
        return ("request", self.request_fields), ("response", self.response_fields)

    @property
    def _target(self) -> str:
        if self.redirect is not None:
            return str(self.redirect)
        if self.answer is not None:
            return f"answer {self.answer.status}"
        rewritten = "/" if self.strip_prefix else self.replace_prefix
        parts = [f"cluster {self.cluster}"]
        if self.split:
            weights = ", ".join(f"{name} {weight:g}" for name, weight in self.split.items())
            parts = [f"split between {weights}"]
        if rewritten is not None:
            parts.append(f"prefix replaced by {rewritten}")
        if self.mirror is not None:
            parts.append(
                f"mirrored to cluster {self.mirror.cluster}, share {with_digits(self.mirror.share, 3)}"
            )
        if self.auth is not None:
            parts.append(f"authorised by cluster {self.auth.cluster}")
        return ", ".join(parts)

    def __str__(self) -> str:
        """The conditions as `balancer check` lists them."""
        path = self.path or (self.prefix or "").removesuffix("/") + "/*"
        url = f"{self.scheme or '*'}://{self.host or '*'}{path}"
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        parts = [f"{url}?{query}" if query else url, ",".join(self.methods)]
        parts += [f"{name}={value}" for name, value in self.headers.items()]
        parts += [f"model={self.model}" if self.model is not None else ""]
        parts += [f"from {','.join(map(str, self.clients))}" if self.clients else ""]
        return " ".join(part for part in parts if part)


def check_cluster(key: str, name: str, known: Collection[str]) -> None:
    """Check the name of a cluster. Raises ValueError."""
    if name not in known:
        raise ValueError(f"{key}: must be one of {', '.join(known) or 'none'}, got '{name}'")


def check_routes(routes: Sequence[RouteConfig], clusters: Mapping[str, Any], *, has_default: bool) -> None:
    """Check the routes as a whole. Raises ValueError for an unknown cluster or a route that another makes ambiguous."""
    known = [*clusters, *([DEFAULT] if has_default else [])]
    if DEFAULT in clusters:
        raise ValueError(f"clusters.{DEFAULT}: is the name of the default cluster")
    for at, route in enumerate(routes):
        named = {f"split.{name}" if route.split else "cluster": name for name in route.clusters}
        named |= {"mirror.cluster": route.mirror.cluster} if route.mirror is not None else {}
        named |= {"auth.cluster": route.auth.cluster} if route.auth is not None else {}
        for key, name in named.items():
            check_cluster(f"routes.{at}.{key}", name, known)
    conditions = [route.conditions for route in routes]
    for places in by_place(routes):
        for number, at in enumerate(places):
            for earlier in places[:number]:
                if conditions[at] == conditions[earlier]:
                    raise ValueError(f"routes.{at}: has the conditions of routes.{earlier}, {routes[at]}")
                if _is_ambiguous(routes[earlier], routes[at]):
                    raise ValueError(
                        f"routes.{at}: and routes.{earlier} are as specific as each other, and a request may match "
                        f"both: {routes[earlier]} and {routes[at]}; add a condition to one"
                    )


def by_place(routes: Sequence[RouteConfig]) -> Iterable[list[int]]:
    """Return the indexes of the routes that have the same host and path."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for at, route in enumerate(routes):
        places.setdefault(route.place, []).append(at)
    return places.values()


def _is_ambiguous(one: RouteConfig, other: RouteConfig) -> bool:
    """Return whether two routes for the same host and path have the same rank and a request may match both."""
    if one.specificity != other.specificity or (one.scheme, one.model) != (other.scheme, other.model):
        return False
    if one.methods and not {*one.methods} & {*other.methods}:
        return False
    if one.clients and not any(
        network.version == another.version and network.overlaps(another)
        for network in one.clients
        for another in other.clients
    ):
        return False
    return all(
        wanted[name] == others[name] or "*" in (wanted[name], others[name])
        for wanted, others in ((one.headers, other.headers), (one.query, other.query))
        for name in wanted.keys() & others.keys()
    )


def listed(routes: Sequence[RouteConfig], *, has_default: bool) -> Iterator[str]:
    """Yield a line for each route, the most specific first, as requests are compared with them."""
    if not routes:
        return
    lines = [(str(route), route.target) for route in sorted(routes, key=RouteConfig.rank)]
    lines.append(("anything else", f"cluster {DEFAULT}" if has_default else "404"))
    width = max(len(conditions) for conditions, _ in lines)
    yield "routes, the most specific first:"
    for conditions, target in lines:
        yield f"  {conditions:<{width}}  {target}"
