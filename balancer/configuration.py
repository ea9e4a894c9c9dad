"""Load the configuration of `serve`, with the files of certificates and the token that it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from balancer.config.loading import LoadedSettings, Settings, read_with_sources
from balancer.config.positions import Place
from balancer.config.problems import ConfigError, from_message, line_for
from balancer.tls.contexts import server_tls_of, upstream_tls_of
from policies.loading.source import Source


def load(path: Path | None, overrides: Mapping[str, Any], files: Iterable[Source] = ()) -> Settings:
    """Return the configuration that `load_with_sources` reads."""
    return load_with_sources(path, overrides, files).settings


def load_with_sources(
    path: Path | None, overrides: Mapping[str, Any], files: Iterable[Source] = ()
) -> LoadedSettings:
    """Read the configuration as `read_with_sources` does, and the file of the token. Raises `ConfigError`, also for
    files of certificates and bodies."""
    reading = read_with_sources(path, overrides, files)
    settings = reading.settings
    place: Place = ()
    try:
        admin = settings.admin.with_token()
        server_tls_of(settings)
        upstream_tls_of(settings)
        settings.read_bodies()
        for name in settings.clusters:
            place = ("clusters", name)
            upstream_tls_of(settings.of_cluster(name))
    except ConfigError as error:
        raise ConfigError(line_for(from_message(str(error), place), reading.source)) from None
    return replace(reading, settings=settings.model_copy(update={"admin": admin}))
