"""Endpoint discovery: polls the sources file, DNS and Kubernetes, and updates the endpoint registry.

A source without a valid answer changes nothing; its problem is kept for the status and logged once. One that is new
and has no answer holds the endpoints that it replaces, or those that another process knows. Each poll is bounded in
time and in frequency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from balancer.cluster.discovery.dns_source import DnsSource
from balancer.cluster.discovery.file_source import FileSource
from balancer.cluster.registry import EndpointRegistry
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.config.problems import ConfigError
from balancer.config.schema.discovery import DnsDiscovery, KubernetesDiscovery
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.log.output import complain
from balancer.syntax.printable import one_line

if TYPE_CHECKING:
    from balancer.cluster.discovery.kubernetes.source import KubernetesSource

RemoteSource: TypeAlias = "DnsSource | KubernetesSource"
"""Source that is asked in a task."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of a configuration, whose files have been read. `found`: the endpoints in `file`, None if it is invalid;
    `before`: those that were in force for it then. `remote`: the DNS sources, then the Kubernetes source."""

    file: FileSource | None = None
    found: tuple[EndpointConfig, ...] | None = None
    before: tuple[EndpointConfig, ...] = ()
    remote: tuple[RemoteSource, ...] = ()

    @property
    def every(self) -> list[FileSource | RemoteSource]:
        """The file source, if any, then the DNS sources, then the Kubernetes source."""
        return [*self.remote] if self.file is None else [self.file, *self.remote]


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
        """The sources in force, that of the file first."""
        return self._sources.every

    def prepare(self, config: RuntimeConfig, *, may_fail: bool = False) -> Sources:
        """Return the sources of a configuration, for `commit`: that of the file, and the others, unchanged or new.

        Raises `ConfigError` for an invalid file, unless it `may_fail`. May be called in a thread.
        """
        file, found, settings = None, None, config.settings
        if settings.discovery.file is not None:
            file = FileSource(settings.discovery.file)
            try:
                found = file.first(config.upstream_tls)
            except ConfigError as error:
                if not may_fail:
                    raise
                file.problem = str(error)
        remote = (self._remote(each, settings.upstream_tls, may_fail) for each in settings.discovery.remote)
        before = () if file is None else tuple(self._roster.named(file.source))
        return Sources(file, found, before, tuple(remote))

    async def look_up(self, sources: Sources, now: float) -> None:
        """Wait for the first answer of each source that is asked; each takes no longer than its own timeout."""
        self._ask_due(sources, now)
        for source in sources.remote:
            await source.answered.wait()

    def discard(self, sources: Sources) -> None:
        """Give up the new ones of prepared sources, which are not put in force."""
        self._cancel(source for source in sources.remote if source not in self._sources.remote)

    def commit(self, sources: Sources, config: RuntimeConfig, now: float) -> list[RemoteSource]:
        """Put what `prepare` has returned in force, with all endpoints of the configuration, in one step.

        Returns the removed sources, whose requests are cancelled.
        """
        before, old = {source.source for source in self.sources}, self._sources.remote
        self._sources = sources
        removed = before - {source.source for source in self.sources}
        for source in removed:  # one that comes back is new to the log, too
            self._said.pop(source, None)
            self._said.pop(f"notice of {source}", None)
        found = {source.source: source.look(now) for source in sources.remote}
        if (file := sources.file) is not None:
            is_changed = (*self._roster.named(file.source),) != sources.before  # by a poll since `prepare`
            found = {file.source: None if is_changed else sources.found, **found}
            if is_changed:
                file.read_again()
        self._roster.apply(config, found)
        for each in self.sources:
            self._take(each, None)
        gone = [source for source in old if source not in sources.remote]
        self._cancel(gone)
        return gone

    def known(self) -> dict[str, list[Any]]:
        """Return the endpoints of all sources, as JSON for `hold` in another process."""
        return {
            source.source: [each.model_dump(mode="json") for each in self._roster.named(source.source)]
            for source in self.sources
        }

    def hold(self, known: dict[str, list[Any]]) -> None:
        """Let each source that has no answer yet hold what another process knows of it, or of the sources that are not
        configured here. Faulty ones are left out."""
        here = {source.source for source in self.sources}
        gone = [each for source, found in known.items() if source not in here for each in found]
        for source in self.sources:
            with suppress(ConfigError, ValidationError):
                held = [EndpointConfig.model_validate(each) for each in known.get(source.source, gone)]
                self._roster.hold(source.source, held)

    def forget_sources(self) -> None:
        """Remove all sources, but keep their endpoints."""
        self._sources = Sources()
        self._cancel(list(self._tasks))

    async def start(self, now: float) -> None:
        """Wait for the first answers, as `look_up`, and use them."""
        self.tick(now)
        await self.look_up(self._sources, now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Poll the sources, and ask those that are due; call it several times a second."""
        for source in self.sources:
            self._take(source, source.look(now))
        self._ask_due(self._sources, now)

    def _ask_due(self, sources: Sources, now: float) -> None:
        for remote in sources.remote:
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

    def _remote(
        self, config: DnsDiscovery | KubernetesDiscovery, tls: UpstreamTlsConfig, may_fail: bool
    ) -> RemoteSource:
        """Return the source for a configuration. Raises `ConfigError`."""
        for source in self._sources.remote:
            if source.is_for(config, tls):
                return source
        if isinstance(config, DnsDiscovery):
            fresh = DnsSource(config, tls)
            for source in self._sources.remote:
                if isinstance(source, DnsSource) and source.source == fresh.source:
                    fresh.known = source.known
            return fresh
        # Imported here, because it brings aiohttp; `runtime_config_of` has done so before a reload.
        from balancer.cluster.discovery.kubernetes.api import access_of
        from balancer.cluster.discovery.kubernetes.source import KubernetesSource

        return KubernetesSource(config, tls, access_of(config, may_fail=may_fail))

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
            if isinstance(
                source, FileSource
            ):  # may be a refused file that is tried again; others state a problem
                source.problem = None
            try:
                self._roster.replace(source.source, endpoints)
            except ConfigError as error:
                source.problem = str(error)
                if isinstance(source, FileSource):
                    source.refused = endpoints
        self._report(source.source, source.problem, "; the endpoints that are known stay")
        self._report(f"notice of {source.source}", source.notice)

    def _report(self, key: str, text: str | None, effect: str = "") -> None:
        """Log a text with its effect, unless it was the last one under this key."""
        if text is not None and self._said.get(key) != text:
            self.say(one_line(f"{text}{effect}"))
        self._said[key] = text or ""
