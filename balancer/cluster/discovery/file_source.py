"""File source of endpoint discovery: a TOML or JSON list of endpoints that may be rewritten at runtime.

A file is read once it is unchanged for one poll, so that it is not read while being written. A file that is unreadable,
invalid or empty changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from balancer.config.documents import parsed, read_text, with_line
from balancer.config.keys import with_located_files
from balancer.config.positions import Place
from balancer.config.problems import ConfigError, config_error, line_for, problems_of
from balancer.config.schema.discovery import EndpointList, FileDiscovery
from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.sources import FileNames

if TYPE_CHECKING:
    from balancer.tls.contexts import UpstreamTls

PERIOD = 1.0
"""Seconds between polls: one stat(2) each."""

Stamp = tuple[int, int, int, int]


class FileSource:
    """File source. `problem`: fault in its last version, None if that is valid. `refused`: endpoints that the registry
    did not take, such as without their `tls.ca`; `look` returns them again."""

    notice: str | None = None

    def __init__(self, config: FileDiscovery) -> None:
        self.config = config
        self.problem: str | None = None
        self.refused: tuple[EndpointConfig, ...] | None = None
        self._named: Callable[[Place], str] = lambda place: str(config.path)
        self._seen: Stamp | None = None
        self._taken: Stamp | None = None
        self._next_at = 0.0

    @property
    def source(self) -> str:
        return f"file {self.config.path}"

    def first(self, tls: UpstreamTls | None = None) -> tuple[EndpointConfig, ...]:
        """Read the file at the start or at a reload, and the files that its endpoints need into `tls`. Raises
        `ConfigError`."""
        self._seen = self._taken = self._stamp()
        endpoints = self._read()
        if tls is not None:
            tls.prepare(endpoints, "discovery.file.endpoints")
        return endpoints

    def read_again(self) -> None:
        """Let the next polls read the file, also if it is unchanged."""
        self._seen = self._taken = None

    def look(self, now: float) -> tuple[EndpointConfig, ...] | None:
        """Poll the file when that is due; returns its endpoints if it has a new valid version, else None."""
        if now < self._next_at:
            return None
        self._next_at = now + PERIOD
        try:
            stamp = self._stamp()
            if stamp == self._taken:
                refused, self.refused = self.refused, None
                return refused
            if stamp != self._seen:
                self._seen = stamp
                return None
            self._taken = stamp
            endpoints = self._read()
        except ConfigError as error:
            self.problem = str(error)
            return None
        self.problem = None
        return endpoints

    def _stamp(self) -> Stamp:
        try:
            found = os.stat(self.config.path)
        except OSError as error:
            self._seen = self._taken = None
            raise self._cannot_read(error) from None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size

    def _read(self) -> tuple[EndpointConfig, ...]:
        try:
            endpoints = EndpointList.model_validate(self._document()).endpoints
        except ValidationError as error:
            problems = problems_of(error, EndpointList)
            raise config_error(
                [f"discovery.file: {line_for(problem, self._named)}" for problem in problems]
            ) from None
        if not endpoints and not self.config.allow_empty:
            raise ConfigError(
                f"discovery.file: {self.config.path}: endpoints: is empty; "
                "discovery.file.allow_empty = true allows that"
            )
        return endpoints

    def _document(self) -> Any:
        path = self.config.path
        is_json = path.suffix.lower() == ".json"
        try:
            text = read_text(path, is_plain=True)
            document = parsed(text, is_json=is_json)
        except OSError as error:
            raise self._cannot_read(error) from None
        except ValueError as error:  # invalid syntax, invalid UTF-8, or too large
            language = "JSON" if is_json else "TOML"
            raise ConfigError(f"discovery.file: {with_line(path, language, error)}") from None
        self._named = (lambda place: str(path)) if is_json else FileNames(path, text)
        document = {"endpoints": document} if isinstance(document, list) else document
        return with_located_files(document, EndpointList, str(path.absolute().parent))

    def _cannot_read(self, error: OSError) -> ConfigError:
        return ConfigError(f"discovery.file.path: cannot read {self.config.path}: {error.strerror}")
