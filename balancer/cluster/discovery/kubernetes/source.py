"""Kubernetes source of endpoint discovery: lists the EndpointSlices of a Service, then watches their changes.

A watch ends once a minute and continues at the last resource version, which bookmarks keep recent. Without an API
server, or with an answer that is invalid, the known endpoints stay.
"""

from __future__ import annotations

import asyncio
from random import Random

from balancer.cluster.discovery.kubernetes.api import (
    EXPIRED,
    ApiFailed,
    ApiRefused,
    ClusterAccess,
    SliceApi,
    opened,
    refusal,
    valid,
)
from balancer.cluster.discovery.kubernetes.endpoints import (
    EndpointSlice,
    PodAddress,
    Unusable,
    Versioned,
    WatchEvent,
    endpoints_of,
)
from balancer.config.problems import ConfigError
from balancer.config.schema.discovery import DnsDiscovery, KubernetesDiscovery
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig

WATCH_TIME = 60
"""Seconds after which the API server ends a watch, so that one without an end is a dead connection. A watch without
changes may be silent for all of it."""

FIRST_PAUSE = 2.0
"""Maximum seconds from the start of a list or watch to the next one; the minimum is half of it."""

LONGEST_PAUSE = 10.0
"""As `FIRST_PAUSE`, after failures: each doubles it up to this."""

PASSING = frozenset((401, 429, 500, 502, 503))
"""Statuses of an answer that say nothing about the resource version, at which the next watch continues. Not 504: a
version that is newer than all that the API server has is answered with it."""


class KubernetesSource:
    """Kubernetes source for one Service. `slices`: the last known ones by name. `notice`: what is left out or assumed,
    None: nothing. `next_at`: time of the next list or watch. `answered`: set once the first list has ended."""

    def __init__(self, config: KubernetesDiscovery, tls: UpstreamTlsConfig, access: ClusterAccess) -> None:
        self.config = config
        self.slices: dict[str, EndpointSlice] = {}
        self.notice: str | None = None
        self.next_at = 0.0
        self.answered = asyncio.Event()
        self._known: dict[PodAddress, EndpointConfig] = {}
        self._name = f"{access.namespace}/{config.service}"
        self._access = access
        self._tls = self._endpoint_tls = tls
        if tls.server_name is None:  # the certificate of endpoints with https must be for the Service
            name = f"{config.service}.{access.namespace}.svc"
            self._endpoint_tls = tls.model_copy(update={"server_name": name})
        self._rng = Random()
        self._pause = FIRST_PAUSE
        self._version: str | None = None
        self._has_changed = False
        self._failure: str | None = None
        self._lack: str | None = None
        self._ends_at: float | None = None
        self._patience = asyncio.Timeout(None)

    @property
    def source(self) -> str:
        return f"kubernetes {self._name}"

    @property
    def problem(self) -> str | None:
        """Why there is no answer, or why it gives no endpoints; None if all is well."""
        return self._failure or self._lack

    @problem.setter
    def problem(self, problem: str | None) -> None:
        self._lack = problem

    def is_for(self, config: DnsDiscovery | KubernetesDiscovery, tls: UpstreamTlsConfig) -> bool:
        return (config, tls) == (self.config, self._tls)

    def look(self, now: float) -> tuple[EndpointConfig, ...] | None:
        """Return the endpoints if they may have changed; ends a watch that is silent. Call it several times a second:
        changes in between are merged."""
        if self._ends_at is not None and now >= self._ends_at:
            self._ends_at = None
            self._patience.reschedule(asyncio.get_running_loop().time())
        if not self._has_changed:
            return None
        self._has_changed = False
        try:
            endpoints, notice = endpoints_of(
                self.slices.values(), self.config, self._endpoint_tls, self._known
            )
        except Unusable as error:
            self._lack = self._line(error)
            return None
        self._lack = None
        self.notice = None if notice is None else self._line(notice)
        return endpoints

    async def follow(self, now: float) -> None:
        """List the slices if no version of them is known, then watch them until the watch ends or fails."""
        self.next_at = now + self._pause * self._rng.uniform(0.5, 1.0)
        is_resumed = self._version is not None
        try:
            async with opened(self._access, self.config.service, self.config.timeout) as api:
                version = self._version or await self._list(api)
                await self._watch(api, version, now)
        except ApiRefused as error:
            if error.code not in PASSING:
                self._version = None
            if error.code == EXPIRED and is_resumed:
                self.next_at = now
            else:
                self._fail(self._line(error))
        except ApiFailed as error:
            self._fail(self._line(error))
        except ConfigError as error:  # a file of credentials
            self._fail(str(error))

    async def _list(self, api: SliceApi) -> str:
        slices, version = await api.list_slices()
        self.slices = {each.name: each for each in slices}
        self._version = version
        self._succeed()
        return version

    async def _watch(self, api: SliceApi, version: str, now: float) -> None:
        seconds = WATCH_TIME + 2 * self.config.timeout
        try:
            async with asyncio.timeout(None) as self._patience, api.watch(version, WATCH_TIME) as lines:
                self._ends_at = now + seconds
                self._succeed()
                async for line in lines:
                    self._apply(valid(WatchEvent, line))
                    self._pause = FIRST_PAUSE
        except TimeoutError:
            raise ApiFailed(
                f"the watch has not ended within {seconds:g} s, so its connection is dead"
            ) from None
        finally:
            self._ends_at = None
        self._pause = FIRST_PAUSE

    def _apply(self, event: WatchEvent) -> None:
        """Apply an event to the known slices. Raises `ApiRefused` if it is invalid or reports an error."""
        if event.type == "ERROR":
            self._version = None  # an event may be lost
            raise refusal(0, event.object)
        version = valid(Versioned, event.object).version
        if event.type != "BOOKMARK":
            changed = valid(EndpointSlice, event.object)
            if event.type == "DELETED":
                self.slices.pop(changed.name, None)
            else:
                self.slices[changed.name] = changed
            self._has_changed = True
        self._version = version

    def _succeed(self) -> None:
        self._failure = None
        self._has_changed = True
        self.answered.set()

    def _fail(self, failure: str) -> None:
        self._failure = failure
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _line(self, text: object) -> str:
        return f"discovery.kubernetes: {self._name}: {text}"
