"""Load the configuration of `serve` or `sidecar`, and check the certificate files that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from balancer.config.load import ConfigError, Settings, read_settings
from balancer.config.sidecar import SidecarConfig, read_sidecar
from balancer.tls.configured import server_tls_of, upstream_tls_of
from balancer.tls.contexts import TlsProblem


def load(path: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Read the configuration as `read_settings` does. Raises `ConfigError`, also for certificate files."""
    settings = read_settings(path, overrides)
    try:
        server_tls_of(settings)
        upstream_tls_of(settings)
    except TlsProblem as error:
        raise ConfigError(str(error)) from None
    return settings


def load_sidecar(path: Path | None, overrides: Mapping[str, Any]) -> SidecarConfig:
    """Read the configuration as `read_sidecar` does. Raises `ConfigError`, also for certificate files."""
    config = read_sidecar(path, overrides)
    for at, origin in enumerate(config.origins):
        try:
            upstream_tls_of(config.unit_of(origin))
        except TlsProblem as error:
            raise ConfigError(str(error).replace("endpoints.0.", f"origins.{at}.")) from None
    return config
