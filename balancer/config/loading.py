"""Read the configuration: parse, validate, and report every error in one line that names the source and the key.

The command line overrides the environment, which overrides the file. `schema/sections.py` has the tables with their
defaults. Pydantic errors must not leave this package; they become `ConfigError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

from pydantic import Field, IPvAnyNetwork, ValidationError, model_validator

from balancer.config.documents import parsed, read_text, with_line
from balancer.config.keys import Table, dotted, with_located_files
from balancer.config.positions import Place
from balancer.config.problems import (
    ConfigError,
    Problem,
    config_error,
    from_message,
    line_for,
    problems_of,
    without_credentials,
)
from balancer.config.schema.admin import AdminConfig
from balancer.config.schema.health import health_of
from balancer.config.schema.listen import ListenAddress, TrafficAddress
from balancer.config.schema.listeners import ListenerConfig, check_listeners
from balancer.config.schema.log import LogConfig
from balancer.config.schema.named_clusters import INFERENCE_SHUTDOWN, ClusterSettings, with_inherited
from balancer.config.schema.names import NamesConfig, RouteWatchConfig
from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.queue import AdmissionConfig
from balancer.config.schema.rate_limits import RateLimitConfig, check_rate_limits
from balancer.config.schema.route_parts import ErrorName, OwnBody
from balancer.config.schema.routes import RouteConfig, check_routes
from balancer.config.schema.section import Name
from balancer.config.schema.sections import (
    ExplainConfig,
    HeadersConfig,
    Http2Config,
    HttpConfig,
    NormaliseConfig,
    RecordConfig,
    SharedConfig,
    TlsConfig,
    TracingConfig,
)
from balancer.config.sources import FileNames, Layer, environment_layer, merge, one_source, with_policies
from policies.errors import BadPolicyOption, PoliciesError
from policies.health.health import Health
from policies.loading.reference import located
from policies.loading.source import Source

MOST_PROCESSES = 256

OPTIONS: Final = {
    "admin": "--admin",
    "endpoints": "--worker",
    "home_region": "--home-region",
    "listen": "--host, --port",
    "policy": "--policy",
    "processes": "--processes",
    "seed": "--seed",
}
"""Options of the command line by the keys that they set."""


ENDPOINTS_REQUIRED: Final = Problem(("endpoints",), "is required: [[endpoints]] once or more, or [discovery]")


class Settings(ClusterSettings):
    """The whole configuration. Keys can be set in the environment too: BALANCER_POLICY, BALANCER_LIMITS__QUEUE.

    The keys of `ClusterSettings` at the top level are those of the default cluster, and defaults of the named ones.
    """

    listen: TrafficAddress = Field(
        default="127.0.0.1:8080",
        description="host:port or unix:/path | traffic address; `[::1]:8080` for IPv6, an empty host for all "
        "addresses, port 0 for any free port, which the ready line names; `unix:/run/steelyard.sock` for a Unix socket",
    )
    listeners: dict[Name, ListenerConfig] = Field(
        default={},
        description="tables | further addresses, `[listeners.NAME]`, such as port 80 that redirects; see "
        "[Listeners](#listeners)",
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=MOST_PROCESSES,
        description="number of processes on the traffic port; see [Processes](#processes)",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        description="whole number | seed of the policies' random numbers; without it every start differs",
    )
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="list of networks | peers whose `X-Forwarded-*` fields are trusted and extended; those of other "
        "peers are replaced",
    )
    proxy_protocol: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="list of networks | peers that must begin every connection with a PROXY header; see [PROXY "
        "protocol](#proxy-protocol)",
    )
    tls: TlsConfig | None = None
    http: HttpConfig = HttpConfig()
    normalise: NormaliseConfig = NormaliseConfig()
    http2: Http2Config = Http2Config()
    admission: AdmissionConfig = AdmissionConfig()
    headers: HeadersConfig = HeadersConfig()
    names: NamesConfig = NamesConfig()
    route_watch: RouteWatchConfig = RouteWatchConfig()
    log: LogConfig = LogConfig()
    record: RecordConfig = RecordConfig()
    explain: ExplainConfig = ExplainConfig()
    tracing: TracingConfig = TracingConfig()
    admin: AdminConfig = AdminConfig()
    shared: SharedConfig = SharedConfig()
    rate_limits: tuple[RateLimitConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    errors: dict[ErrorName, OwnBody] = Field(
        default={},
        description="tables | bodies of the balancer's own error responses, `[errors.NAME]`, by reason, status, "
        "`4xx` or `5xx`; see [Error bodies](#error-bodies)",
    )
    clusters: dict[Name, ClusterSettings] = Field(
        default={},
        description="tables | named clusters, `[clusters.NAME]`, for routes; see [Routes](#routes)",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_inherited(cls, document: Any) -> Any:
        return with_inherited(document)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.has_endpoints and not self.routes:
            raise ValueError(str(ENDPOINTS_REQUIRED))
        for name, cluster in self.clusters.items():
            if not cluster.has_endpoints:
                raise ValueError(f"clusters.{name}.endpoints: {ENDPOINTS_REQUIRED.message}")
        check_routes(self.routes, self.clusters, has_default=self.has_endpoints)
        check_listeners(self.listen, self.listeners, self.clusters, has_default=self.has_endpoints)
        check_rate_limits(self)
        if "inference" in (self.kind, *(cluster.kind for cluster in self.clusters.values())):
            self._derive_in("timeouts", shutdown=INFERENCE_SHUTDOWN)
        return self

    @property
    def tls_tables(self) -> dict[str, TlsConfig]:
        """The TLS tables of the listeners that have one; that of `listen` is ""."""
        tables = {"": self.tls} | {name: listener.tls for name, listener in self.listeners.items()}
        return {name: tls for name, tls in tables.items() if tls is not None}

    @property
    def answers_as_openai(self) -> bool:
        """Whether own errors have the form of OpenAI's API: the workers are for inference, or those of all clusters."""
        named = {cluster.kind for cluster in self.clusters.values()}
        return self.kind == "inference" or (not self.has_endpoints and named == {"inference"})

    def read_bodies(self) -> None:
        """Read the bodies of fixed answers and errors. Raises `ConfigError`."""
        bodies: dict[str, OwnBody] = {f"errors.{name}": body for name, body in self.errors.items()}
        bodies |= {f"routes.{at}.answer": each.answer for at, each in enumerate(self.routes) if each.answer}
        for place, body in bodies.items():
            try:
                _ = body.content
            except ConfigError as error:
                raise ConfigError(f"{place}.{error}") from None

    def health(self) -> Health:
        """Return the health mechanisms. They have their own generator, so that a seeded policy's random sequence does
        not depend on them.
        """
        return health_of(self.outlier_detection, self.panic, self.slow_start, Random(self.seed))

    def of_cluster(self, name: str) -> Settings:
        """Return the configuration of a named cluster, as that of a balancer of its own without clients: it has no
        certificates for them. It records to a file of its own.
        """
        cluster, record = self.clusters[name], self.record
        if record.path is not None:
            record = record.model_copy(update={"path": f"{record.path}.{name}"})
        own = {key: getattr(cluster, key) for key in ClusterSettings.model_fields}
        none: dict[str, Any] = {name: {} for name in ("errors", "clusters", "listeners")}
        none |= {"tls": None, "routes": (), "rate_limits": ()}
        return self.model_copy(update={**own, "record": record, **none})


class ListenOptions(NamedTuple):
    """The options --host and --port."""

    host: str | None
    port: int | None

    def over(self, below: Any) -> str:
        """Return the address to listen on: what is not given is that of `below`, else, also over a Unix socket, of the
        default. Raises TypeError, ValueError or AttributeError if `below` is needed and invalid."""
        default = Settings.model_fields["listen"].default
        address = ListenAddress.parse_traffic(default if below is None or None not in self else below)
        address = ListenAddress.parse(default) if address.path else address
        host, port = self.host or address.host, address.port if self.port is None else self.port
        return f"{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """A valid configuration, and the names of the sources of its keys."""

    settings: Settings
    source: Callable[[Place], str | None]


def read_with_sources(
    path: Path | None, overrides: Mapping[str, Any], files: Iterable[Source] = ()
) -> LoadedSettings:
    """Read the file, override its keys by the environment and then by `overrides`, and validate the result.

    Heroku's $PORT sets `listen` on all addresses, and its $WEB_CONCURRENCY sets `processes`, unless `overrides` has
    them; a host or a port alone replaces that of the address. Of the files that the configuration names only those of
    policies are read, or taken from `files`. Raises `ConfigError`, for all problems at once.
    """
    environment, lines = environment_layer(os.environ, Settings)
    layers = [*([file_layer(path, Settings)] if path is not None else []), environment]
    listen = overrides.get("listen")
    for variable, (key, value_of) in PLATFORM.items():
        if (key not in overrides or (isinstance(listen, ListenOptions) and None in listen)) and (
            text := os.environ.get(variable)
        ):
            try:
                layers.append(one_source({key: value_of(text)}, variable))
            except ValueError as error:
                lines.append(f"{variable}: {error}")
    if isinstance(listen, ListenOptions):
        overrides = {key: value for key, value in overrides.items() if key != "listen"}
        # An invalid one is reported with its own source.
        with suppress(TypeError, ValueError, AttributeError):
            overrides = {**overrides, "listen": listen.over(merge(layers).document.get("listen"))}
    merged = merge([*layers, Layer(dict(overrides), lambda place: OPTIONS.get(str(place[0]), ""))])
    try:
        settings = Settings.model_validate(merged.document)
        problems = list[Problem]()
        clusters: dict[Place, ClusterSettings] = {(): settings}
        clusters |= {("clusters", name): cluster for name, cluster in settings.clusters.items()}
        for place, cluster in clusters.items():
            cluster.policy.library.give(files)
            problems += policy_problems(cluster.policy, (*place, "policy"), cluster)
    except ValidationError as error:
        problems = [*problems_of(error, Settings), *policy_problems_in(merged.document.get("policy"))]
        problems = [each for each in problems if not _is_inherited(each, problems)]
        if ENDPOINTS_REQUIRED not in problems and not merged.document.keys() & {
            "endpoints",
            "discovery",
            "routes",
        }:
            problems.append(ENDPOINTS_REQUIRED)  # the check of the whole needs valid tables
    lines += [line_for(problem, merged.source, path) for problem in problems]
    if lines:
        raise config_error(lines)
    return LoadedSettings(settings, merged.source)


def file_layer(path: Path, table: Table) -> Layer:
    """Return the keys of a TOML file, which is a `table`; its paths are relative to it. Raises `ConfigError`."""
    try:
        text = read_text(path)
        document, folder = parsed(text), str(path.absolute().parent)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8, or a number with thousands of digits
        raise ConfigError(with_line(path, "TOML", error)) from None
    document = with_located_files(document, table, folder)
    return Layer(with_policies(document, lambda policy: located(policy, folder)), FileNames(path, text))


def _all_addresses(port: str) -> str:
    try:
        return str(ListenAddress.parse(f"0.0.0.0:{port}"))
    except ValueError:
        raise ValueError(f"must be a port of 0–65535, got '{port:.60}'") from None


def _processes_from(wanted: str) -> int:
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 and 1 <= int(wanted) <= MOST_PROCESSES:
        return int(wanted)
    raise ValueError(f"must be a whole number of 1–{MOST_PROCESSES}, got '{wanted:.60}'")


PLATFORM: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "PORT": ("listen", _all_addresses),
    "WEB_CONCURRENCY": ("processes", _processes_from),
}
"""Variables that platforms set: the key of each, and the function that makes its value of the text."""


def _is_inherited(problem: Problem, problems: Sequence[Problem]) -> bool:
    """Return whether the problem of a named cluster is one with the key of the top level that it inherits."""
    return problem.place[:1] == ("clusters",) and Problem(problem.place[2:], problem.message) in problems


def policy_problems_in(document: Any) -> Iterator[Problem]:
    """Yield the problems of a policy's name and options in an otherwise invalid configuration."""
    try:
        spec = PolicySpec.model_validate(document or {})
    except ValidationError:
        return  # reported with the rest
    yield from policy_problems(spec)


def policy_problems(
    spec: PolicySpec, at: Place = ("policy",), cluster: ClusterSettings | None = None
) -> Iterator[Problem]:
    """Yield the problems with the policy, its canary and its shadows: their names, options and files, and trial picks
    over the endpoints of the `cluster`."""
    for place, part in spec.parts(at).items():
        try:
            if cluster is None:
                part.alone(Random(0), dotted(place), spec.library)
            else:
                members = [endpoint.endpoint() for endpoint in cluster.endpoints]
                part.require_pick(dotted(place), spec.library, members, cluster.home_region)
        except BadPolicyOption as error:
            yield from_message(str(error))
        except PoliciesError as error:
            yield Problem(place, str(error))


def endpoints_from_workers(workers: Sequence[str]) -> list[dict[str, str]]:
    """Parse `region=http://host:port` from the command line; ids are numbered within each region. Raises
    `ConfigError`.
    """
    endpoints: list[dict[str, str]] = []
    for worker in workers:
        region, separator, address = worker.partition("=")
        if not separator or "://" in region:
            message = f"--worker: must be REGION=http://host:port, got '{worker}'"
            raise ConfigError(without_credentials(message))
        number = sum(endpoint["region"] == region for endpoint in endpoints)
        endpoints.append({"id": f"{region}-{number}", "address": address, "region": region})
    return endpoints
