"""Endpoint discovery: polls the sources file, DNS and Kubernetes, and updates the endpoint registry.

A source without a valid answer changes nothing; its problem is kept for the status and logged once. Each poll is
bounded in time and in frequency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from balancer.cluster.discovery.dns_source import DnsSource
from balancer.cluster.discovery.file_source import FileSource
from balancer.cluster.registry import EndpointRegistry
from balancer.config.problems import ConfigError
from balancer.config.schema.discovery import DiscoveryConfig, DnsDiscovery, KubernetesDiscovery
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.log.output import complain
from balancer.syntax.printable import one_line

if TYPE_CHECKING:
    from balancer.cluster.discovery.kubernetes.source import KubernetesSource

RemoteSource: TypeAlias = "DnsSource | KubernetesSource"
"""Source that is asked in a task."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of a configuration, whose files have been read. `found`: the endpoints in a new `file`, else None.
    `remote`: the DNS sources, then the Kubernetes source."""

    file: FileSource | None = None
    found: tuple[EndpointConfig, ...] | None = None
    remote: tuple[RemoteSource, ...] = ()


class Discovery:
    """Discovery sources of the balancer, which update `registry`. `say`: writes a line to the log."""

    def __init__(self, registry: EndpointRegistry) -> None:
        self._roster = registry
        self.say: Callable[[str], None] = complain
        self._said: dict[str, str] = {}
        self._sources = Sources()
        self._tasks: dict[RemoteSource, asyncio.Task[None]] = {}

    @property
    def sources(self) -> list[FileSource | RemoteSource]:
        """The file source, if any, then the DNS sources, then the Kubernetes source."""
        file, remote = self._sources.file, self._sources.remote
        return [*remote] if file is None else [file, *remote]

    def prepare(self, config: DiscoveryConfig, tls: UpstreamTlsConfig) -> Sources:
        """Return the sources of a configuration, for `commit`: those that are unchanged, and new ones.

        Raises `ConfigError` for an invalid file.
        """
        file, found = self._sources.file, None
        if config.file != (file.config if file is not None else None):
            file = FileSource(config.file) if config.file is not None else None
            found = file.first() if file is not None else None
        return Sources(file, found, tuple(self._remote(each, tls) for each in config.remote))

    def commit(self, sources: Sources) -> list[RemoteSource]:
        """Replace the sources by what `prepare` has returned; the endpoints of removed sources are removed.

        Returns the removed sources, whose requests are cancelled.
        """
        before, old = {source.source for source in self.sources}, self._sources.remote
        self._sources = sources
        names = [source.source for source in self.sources]
        self._roster.arrange(names)
        for source in before.difference(names):  # one that comes back is new to the log, too
            self._said.pop(source, None)
            self._said.pop(f"notice of {source}", None)
        if sources.file is not None:
            self._take(sources.file, sources.found)
        gone = [source for source in old if source not in sources.remote]
        self._cancel(gone)
        return gone

    def forget_sources(self) -> None:
        """Remove all sources, but keep their endpoints."""
        self._sources = Sources()
        self._cancel(list(self._tasks))

    async def start(self, now: float) -> None:
        """Wait for the first answer of each source that is asked; each takes no longer than its own timeout."""
        self.tick(now)
        for source in self._sources.remote:
            await source.answered.wait()
        self.tick(now)

    def tick(self, now: float) -> None:
        """Poll the sources, and ask those that are due; call it several times a second."""
        for source in self.sources:
            self._take(source, source.look(now))
        for remote in self._sources.remote:
            if now >= remote.next_at and remote not in self._tasks:
                self._tasks[remote] = asyncio.get_running_loop().create_task(self._ask(remote, now))

    async def close(self, sources: Iterable[RemoteSource]) -> None:
        """Wait for the end of the requests of sources that `apply` has removed."""
        pending = [self._tasks[source] for source in sources if source in self._tasks]
        if pending:
            await asyncio.wait(pending)

    async def stop(self) -> None:
        """Stop all sources and wait for pending requests to end."""
        self.forget_sources()
        await self.close(list(self._tasks))

    def _cancel(self, sources: Iterable[RemoteSource]) -> None:
        for source in sources:
            if source in self._tasks:
                self._tasks[source].cancel()

    def _remote(self, config: DnsDiscovery | KubernetesDiscovery, tls: UpstreamTlsConfig) -> RemoteSource:
        """Return the source for a configuration. Raises `ConfigError`."""
        for source in self._sources.remote:
            if source.is_for(config, tls):
                return source
        if isinstance(config, DnsDiscovery):
            return DnsSource(config, tls)
        # Imported here, because it brings aiohttp; `runtime_config_of` has done so before a reload.
        from balancer.cluster.discovery.kubernetes.api import access_of
        from balancer.cluster.discovery.kubernetes.source import KubernetesSource

        return KubernetesSource(config, tls, access_of(config))

    async def _ask(self, source: RemoteSource, now: float) -> None:
        try:
            await source.follow(now)
        finally:
            source.answered.set()
            del self._tasks[source]
        if source in self._sources.remote:  # unless it was replaced in the meantime
            self._take(source, source.look(now))

    def _take(self, source: FileSource | RemoteSource, endpoints: tuple[EndpointConfig, ...] | None) -> None:
        if endpoints is not None:
            try:
                self._roster.replace(source.source, endpoints)
            except ConfigError as error:
                source.problem = str(error)
        self._report(source.source, source.problem, "; the endpoints that are known stay")
        self._report(f"notice of {source.source}", source.notice)

    def _report(self, key: str, text: str | None, effect: str = "") -> None:
        """Log a text with its effect, unless it was the last one under this key."""
        if text is not None and self._said.get(key) != text:
            self.say(one_line(f"{text}{effect}"))
        self._said[key] = text or ""
