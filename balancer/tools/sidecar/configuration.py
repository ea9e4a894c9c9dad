"""Load the configuration of `sidecar`, with the files of certificates that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from balancer.config.problems import ConfigError
from balancer.config.schema.sidecar import SidecarConfig, read_sidecar
from balancer.tls.contexts import TlsProblem, upstream_tls_of


def load_sidecar(path: Path | None, overrides: Mapping[str, Any]) -> SidecarConfig:
    """Read the configuration as `read_sidecar` does. Raises `ConfigError`, also for certificate files."""
    config = read_sidecar(path, overrides)
    for at, origin in enumerate(config.origins):
        try:
            upstream_tls_of(config.unit_of(origin))
        except TlsProblem as error:
            raise ConfigError(str(error).replace("endpoints.0.", f"origins.{at}.")) from None
    return config
