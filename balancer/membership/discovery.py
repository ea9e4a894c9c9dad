"""Endpoints that come and go by themselves: the sources that are watched, and when each is looked at.

Rule of this file: a source that has nothing good to say changes nothing; what is wrong with it is kept for the status
and said once. Each look is bounded in time and in how often it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from balancer.config.discovery import DiscoveryConfig, DnsDiscovery
from balancer.config.sections import EndpointConfig, UpstreamTlsConfig
from balancer.log.output import complain
from balancer.membership.dns_source import WatchedName
from balancer.membership.file_source import WatchedFile
from balancer.tls.contexts import TlsProblem

if TYPE_CHECKING:
    from balancer.membership.registry import EndpointRegistry

FILE_PERIOD = 1.0
"""Seconds between looks at a file: one stat(2) each."""


class Discovery:
    """The sources of one unit, feeding `roster`. `say` tells whoever runs the unit."""

    def __init__(self, roster: EndpointRegistry, say: Callable[[str], None] = complain) -> None:
        self._roster = roster
        self.say = say
        self._said: dict[str, str] = {}
        self._file: WatchedFile | None = None
        self._names: dict[str, WatchedName] = {}
        self._tasks: dict[WatchedName, asyncio.Task[None]] = {}
        self._look_at_file_at = 0.0

    @property
    def sources(self) -> Iterator[WatchedFile | WatchedName]:
        """All that are watched."""
        if self._file is not None:
            yield self._file
        yield from self._names.values()

    @property
    def is_looking(self) -> bool:
        """Whether an answer of the DNS is still to come."""
        return bool(self._tasks)

    def apply(self, config: DiscoveryConfig, tls: UpstreamTlsConfig) -> list[WatchedName]:
        """Watch these sources from now on. Those that stay go on; the endpoints of those that are gone are forgotten.

        Returns names to be closed. Raises `ConfigError` for a file that is not good, and then changes nothing.
        """
        file, endpoints = self._file, None
        if config.file != (file.config if file is not None else None):
            file = WatchedFile(config.file) if config.file is not None else None
            endpoints = file.first() if file is not None else None
        before, old = {source.source for source in self.sources}, self._names
        self._names = {dns.source: self._name(dns, tls) for dns in config.dns}
        self._file = file
        self._roster.forget(before - {source.source for source in self.sources})
        if file is not None:
            self._take(file, endpoints)
        return [name for source, name in old.items() if self._names.get(source) is not name]

    async def start(self, now: float) -> None:
        """Ask for every name once; each takes no longer than its own timeout."""
        self.tick(now)
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def tick(self, now: float) -> None:
        """To be called some times a second: looks at whatever is due."""
        if self._file is not None and now >= self._look_at_file_at:
            self._look_at_file_at = now + FILE_PERIOD
            self._take(self._file, self._file.look())
        for name in self._names.values():
            if now >= name.next_at and name not in self._tasks:
                self._tasks[name] = asyncio.get_running_loop().create_task(self._look(name, now))

    async def close(self, names: Iterable[WatchedName]) -> None:
        """They are not watched any more."""
        for name in names:
            if name in self._tasks:
                self._tasks[name].cancel()
                await asyncio.wait([self._tasks[name]])

    async def stop(self) -> None:
        """Look no more."""
        names, self._names, self._file = list(self._names.values()), {}, None
        await self.close(names)

    def _name(self, config: DnsDiscovery, tls: UpstreamTlsConfig) -> WatchedName:
        old = self._names.get(config.source)
        return old if old is not None and old.is_for(config, tls) else WatchedName(config, tls)

    async def _look(self, name: WatchedName, now: float) -> None:
        try:
            endpoints = await name.look(now)
        finally:
            del self._tasks[name]
        if self._names.get(name.source) is name:  # it may have been replaced meanwhile
            self._take(name, endpoints)

    def _take(self, source: WatchedFile | WatchedName, endpoints: tuple[EndpointConfig, ...] | None) -> None:
        if endpoints is not None:
            try:
                self._roster.replace(source.source, endpoints)
            except TlsProblem as error:
                source.problem = str(error)
        if source.problem is not None and self._said.get(source.source) != source.problem:
            self.say(f"{source.problem}; the endpoints that are known stay")
        self._said[source.source] = source.problem or ""
