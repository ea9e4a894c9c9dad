"""Read the configuration: parse, validate, and report the first error in one line that names the field.

The command line overrides the environment, which overrides the file. `sections.py` has the tables with their defaults.
Pydantic errors must not leave this package; they become `ConfigError`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import Any, Self

from pydantic import Field, IPvAnyNetwork, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from balancer.config.admin import AdminConfig
from balancer.config.discovery import DiscoveryConfig, check_unique
from balancer.config.documents import read_document
from balancer.config.explain import ExplainConfig
from balancer.config.health import (
    HealthChecksConfig,
    OutlierDetectionConfig,
    PanicConfig,
    SlowStartConfig,
    health_of,
)
from balancer.config.key import KeyConfig
from balancer.config.listen import HostPort, ListenAddress
from balancer.config.load_probes import LoadProbesConfig
from balancer.config.names import NamesConfig, RouteWatchConfig
from balancer.config.pool import PoolConfig
from balancer.config.pool_limits import PoolLimits
from balancer.config.queue import AdmissionConfig, ConcurrencyConfig, QueueConfig
from balancer.config.record import RecordConfig
from balancer.config.renamed import renamed_at, renamed_variable
from balancer.config.retries import HedgingConfig, RetryConfig
from balancer.config.sections import (
    EndpointConfig,
    HeadersConfig,
    HttpConfig,
    LimitsConfig,
    LogConfig,
    Name,
    PolicySpec,
    TimeoutsConfig,
    TlsConfig,
    UpstreamTlsConfig,
)
from balancer.config.sticky import StickyConfig
from policies.errors import PoliciesError
from policies.health.health import Health
from policies.loading.reference import located

ENVIRONMENT_PREFIX = "BALANCER_"

MOST_PROCESSES = 256


class ConfigError(Exception):
    """Invalid configuration; the message is one line with the field and its allowed values. Exit code 2."""

    exit_code = 2


class Settings(BaseSettings):
    """The whole configuration. Keys can be set in the environment too: BALANCER_POLICY, BALANCER_LIMITS__QUEUE."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__"
    )

    listen: HostPort = Field(
        default="127.0.0.1:8080", description="host:port; [::1]:8080 for IPv6; port 0: any free one"
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=MOST_PROCESSES,
        description="number of balancer processes on one port; default: $WEB_CONCURRENCY",
    )
    home_region: Name | None = Field(default=None, description="region of this balancer and its clients")
    policy: PolicySpec = PolicySpec()
    seed: int | None = Field(
        default=None, ge=0, description="seed of the policies' random numbers. None: a new one at each start"
    )
    retries: int = Field(
        default=2, ge=0, le=10, description="maximum retries of a request, where a retry is safe"
    )
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="networks whose X-Forwarded-* fields are trusted; those of other clients are replaced",
    )
    proxy_protocol: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="networks whose connections must begin with a PROXY header; a PROXY header from others is refused",
    )
    endpoints: tuple[EndpointConfig, ...] = ()
    discovery: DiscoveryConfig = DiscoveryConfig()
    tls: TlsConfig | None = None
    upstream_tls: UpstreamTlsConfig = UpstreamTlsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    retry: RetryConfig = RetryConfig()
    hedging: HedgingConfig = HedgingConfig()
    http: HttpConfig = HttpConfig()
    limits: LimitsConfig = LimitsConfig()
    queue: QueueConfig = QueueConfig()
    admission: AdmissionConfig = AdmissionConfig()
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    headers: HeadersConfig = HeadersConfig()
    pool: PoolConfig = PoolConfig()
    names: NamesConfig = NamesConfig()
    route_watch: RouteWatchConfig = RouteWatchConfig()
    health_checks: HealthChecksConfig = HealthChecksConfig()
    load_probes: LoadProbesConfig = LoadProbesConfig()
    outlier_detection: OutlierDetectionConfig = OutlierDetectionConfig()
    panic: PanicConfig = PanicConfig()
    slow_start: SlowStartConfig = SlowStartConfig()
    sticky: StickyConfig = StickyConfig()
    key: KeyConfig = KeyConfig()
    log: LogConfig = LogConfig()
    record: RecordConfig = RecordConfig()
    explain: ExplainConfig = ExplainConfig()
    admin: AdminConfig = AdminConfig()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.endpoints and not self.discovery.is_configured:
            raise ValueError("endpoints: is required: [[endpoints]] once or more, or [discovery]")
        check_unique(self.endpoints)
        if self.key.by is not None and (self.sticky.cookie or self.sticky.header):
            raise ValueError("key.by: give [sticky], which has its own key, or [key], not both")
        return self

    @property
    def pool_limits(self) -> PoolLimits:
        """Limits of the connection pools."""
        return self.pool.limits(self.timeouts.connect, self.seed)

    def health(self) -> Health:
        """Return the health mechanisms. They have their own generator, so that a seeded policy's random sequence does
        not depend on them.
        """
        return health_of(self.outlier_detection, self.panic, self.slow_start, Random(self.seed))


def read_settings(path: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Read the file, override its keys by the environment and then by `overrides`, and validate the result.

    Heroku's $PORT sets `listen` on all addresses, and its $WEB_CONCURRENCY sets `processes`, unless `overrides` has
    them. The files that the configuration names are not read. Raises `ConfigError`.
    """
    refuse_renamed_variables()
    document = read_file(path) if path is not None else {}
    if path is not None and "policy" in document:
        document = document | {"policy": located(document["policy"], str(path.absolute().parent))}
    overrides = dict(overrides)
    if "listen" not in overrides and (port := os.environ.get("PORT")):
        overrides["listen"] = _all_addresses(port)
    if "processes" not in overrides and (wanted := os.environ.get("WEB_CONCURRENCY")):
        overrides["processes"] = _processes_from(wanted)
    try:
        settings = _read_with(document, overrides)
        settings.policy.make(Random(0))  # reads the files of policies, too
    except ValidationError as error:
        raise ConfigError(first_problem(error)) from None
    except PoliciesError as error:
        raise ConfigError(str(error) if str(error).startswith("policy") else f"policy: {error}") from None
    return settings


def refuse_renamed_variables() -> None:
    """Check that no environment variable has the name of a renamed key. Raises `ConfigError`."""
    problem = renamed_variable(os.environ, ENVIRONMENT_PREFIX)
    if problem is not None:
        raise ConfigError(problem)


def _all_addresses(port: str) -> str:
    try:
        return str(ListenAddress.parse(f"0.0.0.0:{port}"))
    except ValueError:
        raise ConfigError(f"PORT: must be a port of 0–65535, got '{port}'") from None


def _processes_from(wanted: str) -> int:
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= MOST_PROCESSES:
        return int(wanted)
    raise ConfigError(f"WEB_CONCURRENCY: must be a whole number of 1–{MOST_PROCESSES}, got '{wanted}'")


class Environment(EnvSettingsSource):
    """Environment source that passes text that is not JSON as a string, as in `BALANCER_POLICY=random`, to the field's
    validation.
    """

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


_document: ContextVar[dict[str, Any]] = ContextVar("document")


class SettingsWithFile(Settings):
    """`Settings` with the file's keys below the environment's.

    pydantic-settings gets the sources from the class, and creating a class for each load would take longer than all the
    rest; so the document is passed in a context variable.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, Environment(settings_cls), InitSettingsSource(settings_cls, _document.get())


def _read_with(document: dict[str, Any], overrides: dict[str, Any]) -> Settings:
    token = _document.set(document)
    try:
        return SettingsWithFile(**overrides)
    finally:
        _document.reset(token)


def read_file(path: Path) -> dict[str, Any]:
    """Return the TOML document at `path`. Raises `ConfigError`."""
    try:
        document: dict[str, Any] = read_document(path)
        return document
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8, or a number with thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None


def first_problem(error: ValidationError) -> str:
    """Return one line for the first of pydantic's errors: field, what is allowed, what was given."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(
        str(part) for part in problem["loc"] if part != "function-before[_from_name(), PolicySpec]"
    )
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        message = "is required"
    elif problem["type"] == "extra_forbidden":
        new = renamed_at(problem["loc"])
        message = "is not a known key" if new is None else f"renamed to {new}"
    elif problem["type"] != "value_error":
        given = repr(problem["input"])
        message = (
            f"{message[:1].lower()}{message[1:]}, got {given if len(given) <= 60 else given[:57] + '...'}"
        )
    return f"{field}: {message}" if field else message


def endpoints_from_workers(workers: Sequence[str]) -> list[dict[str, str]]:
    """Parse `region=http://host:port` from the command line; ids are numbered within each region. Raises
    `ConfigError`.
    """
    endpoints: list[dict[str, str]] = []
    for worker in workers:
        region, separator, address = worker.partition("=")
        if not separator or "://" in region:
            raise ConfigError(f"--worker: must be REGION=http://host:port, got '{worker}'")
        number = sum(endpoint["region"] == region for endpoint in endpoints)
        endpoints.append({"id": f"{region}-{number}", "address": address, "region": region})
    return endpoints
