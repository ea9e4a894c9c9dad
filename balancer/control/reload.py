"""Reload of the configuration: read and validated in a thread, like at the start, before anything changes.

The caller then looks up the endpoints of new clusters and sources, and applies the result in one step, whose first part
creates all that may still fail. An invalid configuration changes nothing; the problem is kept for the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from operator import attrgetter

from balancer.cluster.discovery.discovery import Sources
from balancer.cluster.runtime_config import RuntimeConfig, runtime_config_of
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError, in_cluster
from balancer.config.schema.listeners import changed_listeners
from balancer.control.control_plane import ControlPlane
from balancer.errors import LogFailed
from balancer.log.output import LogOutput
from balancer.tracing.tracing import load
from policies.errors import PoliciesError
from policies.loading.source import Source

FIXED = ("listen", "processes", "seed", "admin.socket", "admin.listen", "shared")
"""Keys that take effect only at the start."""

Read = Callable[[Sequence[Source]], Settings]
"""Function that returns the current configuration. Its argument are files of policies whose contents are used instead
of those on the disk."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid configuration, ready to apply. `output` is the open access log output if its configuration changed;
    `sources` are those of the endpoints of each cluster that stays."""

    settings: Settings
    config: RuntimeConfig
    output: LogOutput | None
    sources: Mapping[str, Sources]


class Reloads:
    """Serialized reloads: `read` returns the current configuration, `commit` applies it.

    `settings` are those of the start, which fixed keys are compared with. `tally`: how many have begun, and ended.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        settings: Settings,
        read: Read,
        commit: Callable[[Prepared], Awaitable[None]],
        tally: MutableSequence[int] | memoryview[int],
    ) -> None:
        self._control_plane = control_plane
        self._started_with = settings
        self._log = settings.log
        self._read = read
        self._commit = commit
        self._turn = asyncio.Lock()
        self.tally = tally

    async def run(self, files: Sequence[Source] = ()) -> None:
        """Reload the configuration, with `files` of policies as a sibling process has read them. Raises `ConfigError`,
        and then nothing has changed.
        """
        async with self._turn:
            counts = self._control_plane.reload_counts
            self.tally[0] += 1
            try:
                settings = await self._run(files)
            except (ConfigError, LogFailed, PoliciesError) as error:
                counts.refused += 1
                counts.problem = str(error)
                raise ConfigError(str(error)) from None
            finally:
                self.tally[1] += 1
            self._log = settings.log
            counts.done += 1
            counts.problem = None
            counts.waiting = self._waiting(settings)

    async def _run(self, files: Sequence[Source]) -> Settings:
        prepared = await asyncio.to_thread(self._prepare, files)
        try:
            await self._commit(prepared)
        except BaseException:  # also where the balancer stops meanwhile
            if prepared.output is not None:
                prepared.output.close()
            raise
        return prepared.settings

    def _prepare(self, files: Sequence[Source]) -> Prepared:
        settings = self._read(files)
        config = runtime_config_of(settings)
        load(config.settings.tracing)
        sources = {}
        for plane, one in self._control_plane.kept(config):
            with in_cluster(plane.cluster.name):
                sources[plane.cluster.name] = plane.sources_of(one)
            plane.registry.warm(one)  # here, in a thread, because it takes long
            plane.try_policy(one)
        is_new = settings.log.access != "off" and settings.log != self._log
        return Prepared(settings, config, LogOutput(settings.log.path) if is_new else None, sources)

    def _waiting(self, settings: Settings) -> tuple[str, ...]:
        old, new = self._started_with, settings
        fixed = [key for key in FIXED if attrgetter(key)(new) != attrgetter(key)(old)]
        return (*fixed, *changed_listeners(old.listeners, new.listeners))
