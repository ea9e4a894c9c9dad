"""Endpoint discovery: polls the file source and the DNS sources, and updates the endpoint registry.

A source without a valid answer changes nothing; its problem is kept for the status and logged once. Each poll is
bounded in time and in frequency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from balancer.config.discovery import DiscoveryConfig, DnsDiscovery
from balancer.config.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.log.output import complain
from balancer.membership.dns_source import DnsSource
from balancer.membership.file_source import FileSource
from balancer.tls.contexts import TlsProblem

if TYPE_CHECKING:
    from balancer.membership.registry import EndpointRegistry

FILE_PERIOD = 1.0
"""Seconds between polls of the file: one stat(2) each."""


class Discovery:
    """Discovery sources of the balancer, which update `registry`. `say`: writes a line to the log."""

    def __init__(self, registry: EndpointRegistry, say: Callable[[str], None] = complain) -> None:
        self._roster = registry
        self.say = say
        self._said: dict[str, str] = {}
        self._file: FileSource | None = None
        self._names: dict[str, DnsSource] = {}
        self._tasks: dict[DnsSource, asyncio.Task[None]] = {}
        self._look_at_file_at = 0.0

    @property
    def sources(self) -> Iterator[FileSource | DnsSource]:
        """The file source, if any, then the DNS sources."""
        if self._file is not None:
            yield self._file
        yield from self._names.values()

    @property
    def is_looking(self) -> bool:
        """Whether a DNS lookup is in progress."""
        return bool(self._tasks)

    def apply(self, config: DiscoveryConfig, tls: UpstreamTlsConfig) -> list[DnsSource]:
        """Apply a configuration: unchanged sources continue, and the endpoints of removed sources are removed.

        Returns the DNS sources to close. Raises `ConfigError` for an invalid file, and then changes nothing.
        """
        file, endpoints = self._file, None
        if config.file != (file.config if file is not None else None):
            file = FileSource(config.file) if config.file is not None else None
            endpoints = file.first() if file is not None else None
        before, old = {source.source for source in self.sources}, self._names
        self._names = {dns.source: self._name(dns, tls) for dns in config.dns}
        self._file = file
        self._roster.forget(before - {source.source for source in self.sources})
        if file is not None:
            self._take(file, endpoints)
        return [name for source, name in old.items() if self._names.get(source) is not name]

    def forget_sources(self) -> None:
        """Remove all sources, but keep their endpoints."""
        self._names, self._file = {}, None

    async def start(self, now: float) -> None:
        """Look up all DNS sources once; each takes no longer than its own timeout."""
        self.tick(now)
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def tick(self, now: float) -> None:
        """Poll the sources that are due; call it several times a second."""
        if self._file is not None and now >= self._look_at_file_at:
            self._look_at_file_at = now + FILE_PERIOD
            self._take(self._file, self._file.look())
        for name in self._names.values():
            if now >= name.next_at and name not in self._tasks:
                self._tasks[name] = asyncio.get_running_loop().create_task(self._look(name, now))

    async def close(self, names: Iterable[DnsSource]) -> None:
        """Cancel the lookups of DNS sources that `apply` returned, and wait for them to end."""
        for name in names:
            if name in self._tasks:
                self._tasks[name].cancel()
                await asyncio.wait([self._tasks[name]])

    async def stop(self) -> None:
        """Stop all sources and wait for pending lookups to end."""
        self.forget_sources()
        await self.close(list(self._tasks))

    def _name(self, config: DnsDiscovery, tls: UpstreamTlsConfig) -> DnsSource:
        old = self._names.get(config.source)
        return old if old is not None and old.is_for(config, tls) else DnsSource(config, tls)

    async def _look(self, name: DnsSource, now: float) -> None:
        try:
            endpoints = await name.look(now)
        finally:
            del self._tasks[name]
        if self._names.get(name.source) is name:  # unless it was replaced during the lookup
            self._take(name, endpoints)

    def _take(self, source: FileSource | DnsSource, endpoints: tuple[EndpointConfig, ...] | None) -> None:
        if endpoints is not None:
            try:
                self._roster.replace(source.source, endpoints)
            except TlsProblem as error:
                source.problem = str(error)
        if source.problem is not None and self._said.get(source.source) != source.problem:
            self.say(f"{source.problem}; the endpoints that are known stay")
        self._said[source.source] = source.problem or ""
