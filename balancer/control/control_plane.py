"""Control plane of one process: applies configuration and commands to its clusters, and observes it.

It owns what no request passes through: the configuration in force, the endpoint registry and its sources, active checks
and load probes, access log and recording, explanations. A request never waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from balancer.cluster.active_checks import Checks
from balancer.cluster.affinity import Stickiness
from balancer.cluster.cluster import Cluster
from balancer.cluster.discovery.discovery import Discovery, RemoteSource, Sources
from balancer.cluster.explaining import Explanations
from balancer.cluster.registry import EndpointRegistry, by_id
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.cluster.state_log import StateLog
from balancer.config.problems import ConfigError, in_cluster
from balancer.config.schema.policy_spec import PolicySpec, can_read_prompts, plain
from balancer.config.schema.routes import DEFAULT
from balancer.config.schema.sticky import StickyConfig
from balancer.errors import CommandRefused
from balancer.inference.prompt_reader import PromptReader
from balancer.log.access_log import AccessLog
from balancer.log.journal import journal_of
from balancer.mirroring.mirror import Mirrors
from balancer.rate_limits.configured import RateLimits
from balancer.recording.recorder import Recorder
from balancer.recording.recording import ClusterRecording
from balancer.routes.split import Splits
from balancer.sharing.exchange import ReportExchange
from balancer.sharing.shared_counters import key_of
from balancer.sharing.token_exchange import TokenExchange
from balancer.tls.contexts import UpstreamTls
from balancer.upstream.load_probes import LoadProbes
from policies.errors import PoliciesError
from policies.facts import Endpoint
from policies.insight.canary import Canary
from policies.insight.shadow import Shadow, Shadowed
from policies.policy import Policy
from policies.routing.affinity import StickyCounts


@dataclass(slots=True)
class ReloadCounts:
    """Reload totals since the start.

    `problem` is the error of the last reload, None if it succeeded; `waiting` are the changed keys that take effect
    only at the next start.
    """

    done: int = 0
    refused: int = 0
    problem: str | None = None
    waiting: tuple[str, ...] = ()


class ControlPlane:
    """Configuration, membership and observation of one `cluster`.

    `config` is the runtime configuration; `policy` is the policy in force, which may differ from the configured one,
    and `policy_loaded_at` is when it was put in force. `recorder` is None unless a recording runs, `shared` unless
    knowledge is shared with other units, and `sweep_siblings` unless this is one of several processes. `named` are the
    control planes of the named clusters, by name, if this one is that of the default cluster, which also has the
    `rate_limits`, the `mirrors` and the `splits` of all routes.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: Random,
        config: RuntimeConfig,
    ) -> None:
        clock = cluster.process.clock
        self.cluster = cluster
        self.config = config
        self.policy = config.settings.policy
        cluster.policy = config.settings.policy.label
        self.policy_loaded_at = datetime.now(UTC)
        self.reload_counts = ReloadCounts()
        self.sticky_counts = StickyCounts()
        self.stickiness: Stickiness | None = None
        self.shadows: tuple[Shadow, ...] = ()
        self.recorder: Recorder | None = None
        self.shared: ReportExchange | None = None
        self.shared_limits: TokenExchange | None = None
        self.sweep_siblings: Callable[[float], None] | None = None
        self.named: dict[str, ControlPlane] = {}
        self.rate_limits = RateLimits(cluster.now, cluster.trusts)
        self.mirrors = Mirrors()
        self.splits = Splits()
        self._rng = rng
        self._inner = cluster.router.policy
        self.access_log: AccessLog | None = None  # which `cluster.journal` writes to
        self._sticky = StickyConfig()
        self._prompts: PromptReader | None = None
        self._prompt_memory: memoryview | None = None
        self._has_begun = False
        self._update_shadows()
        self._update_prompts()
        self.apply_access_log()
        cluster.pools.configs = by_id(config.settings.endpoints)
        cluster.pools.replace([state.endpoint for state in cluster.router.states])
        self._link_pools()
        settings = config.settings
        self.checks = Checks(cluster.router, cluster.pools, settings.health_checks, settings.seed)
        self.state_log = StateLog(cluster.router, cluster.pools, self.checks)
        self.state_log.policy_key = policy_key(self.policy)
        self.load_probes = LoadProbes(cluster.router, cluster.pools, clock.now, cluster.reports)
        self.registry = EndpointRegistry(self, config)
        self.discovery = Discovery(self.registry)
        self.recording = ClusterRecording(self, clock)
        self.explanations = Explanations(cluster.router, clock.now)
        self._apply(config)

    def of_cluster(self, name: str | None) -> ControlPlane:
        """Return the control plane of a cluster; of None or `DEFAULT` this one. Raises `CommandRefused`."""
        if name is None or name == DEFAULT:
            return self
        try:
            return self.named[name]
        except KeyError:
            known = ", ".join((DEFAULT, *self.named))
            raise CommandRefused(f"cluster: must be one of {known}, got '{name:.60}'", 404) from None

    # --- configuration

    def reload(self, config: RuntimeConfig, sources: Mapping[str, Sources]) -> list[RemoteSource]:
        """Apply a runtime configuration with its endpoints and policy, here and to the named clusters that it keeps.
        `sources`: those of discovery, as it has prepared them, by cluster.

        Returns the sources to close. Raises `ConfigError` or `PoliciesError` before anything changes in
        any cluster.
        """
        commits = [plane._prepare(one, sources[plane.cluster.name]) for plane, one in self.kept(config)]
        gone, *_ = [commit() for commit in commits]
        return gone

    def kept(self, config: RuntimeConfig) -> list[tuple[ControlPlane, RuntimeConfig]]:
        """Return this control plane and those of the named clusters that stay, with their parts of a configuration."""
        named = [(plane, config.named[name]) for name, plane in self.named.items() if name in config.named]
        return [(self, config), *named]

    def _prepare(self, config: RuntimeConfig, sources: Sources) -> Callable[[], list[RemoteSource]]:
        """Create what a runtime configuration needs. Returns a function that applies it and does not fail.

        Raises `ConfigError` or `PoliciesError`.
        """
        spec = config.settings.policy
        policy = None if spec.is_same_as(self.policy) else spec.make(self._rng, (self.policy, self._inner))
        self.registry.warm(config)  # again: the endpoints may have changed

        def commit() -> list[RemoteSource]:
            self.config = config  # first: endpoints get its TLS contexts
            if policy is not None:
                self._set_policy(spec, policy)
            self.apply(config)
            return self.discovery.commit(sources, config, self.cluster.now())

        return commit

    def try_policy(self, config: RuntimeConfig) -> None:
        """Let the policy of a runtime configuration make a trial pick, if it is not in force. Raises `ConfigError`.

        That of `Settings` is over the endpoints of the file only; this includes discovered ones.
        """
        spec = config.settings.policy
        if not spec.is_same_as(self.policy):
            try:
                spec.require_picks(self.registry.under(config), config.settings.home_region)
            except PoliciesError as error:
                with in_cluster(self.cluster.name):
                    raise ConfigError(f"policy: {error}") from None

    def apply(self, config: RuntimeConfig) -> None:
        """Apply a runtime configuration, except for endpoints and policy, which may have been changed since it was
        loaded."""
        self.config = config
        self.cluster.apply(config)
        self._apply(config)

    def _apply(self, config: RuntimeConfig) -> None:
        router = self.cluster.router
        self.checks.apply(config.settings.health_checks)
        self.load_probes.apply(config.settings.load_probes)
        router.apply_health(config.settings.health())
        router.apply_concurrency(config.settings.concurrency.rules())
        self.recording.apply(config.settings.record, (config.settings.key, config.settings.sticky))
        self.cluster.explaining = self.explanations.apply(config.settings.explain)
        self._update_prompts()
        self.stickiness = config.stickiness
        if config.settings.sticky != self._sticky:
            self._sticky = config.settings.sticky
            self._use(self._inner)
        router.apply_in_flight_limit(
            config.settings.limits.in_flight
        )  # last: waiting requests may be sent at once

    def apply_policy(self, spec: PolicySpec) -> None:
        """Apply a routing policy. Raises `PoliciesError`, and then changes nothing."""
        self._set_policy(spec, spec.make(self._rng))

    def _set_policy(self, spec: PolicySpec, policy: Policy) -> None:
        self._use(policy)
        self.policy = spec
        self.cluster.policy = spec.label
        self.state_log.policy_key = policy_key(spec)
        self.policy_loaded_at = datetime.now(UTC)
        if self.recorder is not None:
            self.recorder.policy_changed(self.cluster.now(), {"name": spec.name, **spec.options})

    def _use(self, policy: Policy) -> None:
        self._inner = policy
        self._share_prompts()
        self._update_shadows()
        stickiness = self.stickiness
        self.cluster.router.set_policy(
            policy if stickiness is None else stickiness.around(policy, self.sticky_counts)
        )
        self._update_prompts()
        self._update_observers()

    def share_prompts(self, memory: memoryview) -> None:
        """Let the policy in force, and later ones, keep its prefix index in memory of all processes."""
        self._prompt_memory = memory
        self._share_prompts()

    def _share_prompts(self) -> None:
        share = getattr(plain(self._inner)[0], "share_prompts", None)
        if self._prompt_memory is not None and share is not None:
            self.cluster.router.active.call(share, self._prompt_memory)

    def _update_prompts(self) -> None:
        """Read prompts while the policy does, or their answers are to be; what was counted stays."""
        cluster = self.cluster
        needs_blocks = cluster.router.active.reads_prompts
        if needs_blocks or (self.config.settings.kind == "inference" and can_read_prompts()):
            self._prompts = cluster.prompts = self._prompts or PromptReader()
            cluster.prompts.needs_blocks = needs_blocks
        else:
            cluster.prompts = None

    def _update_shadows(self) -> None:
        policy = self._inner
        self.shadows = policy.shadows if isinstance(policy, Shadowed) else ()
        live = policy.live if isinstance(policy, Shadowed) else policy
        self.cluster.canary = live if isinstance(live, Canary) else None

    # --- observers

    def apply_access_log(self) -> None:
        """Write the requests that end from now on to the access log of the process, if it has one."""
        self.access_log = self.cluster.process.access_log
        self._update_observers()

    def set_recorder(self, recorder: Recorder | None) -> None:
        """Set the recorder; None ends the recording."""
        self.recorder = recorder
        self._update_observers()

    def _update_observers(self) -> None:
        cluster = self.cluster
        cluster.journal = journal_of(self.access_log, self.recorder)
        cluster.reads_load = self.recorder is not None or hasattr(self._inner, "observe")

    def _measure_doubted(self) -> None:
        """Measure the round trip to endpoints that the policy begins to doubt, where a connection may be opened."""
        pools = self.cluster.pools
        for state in self.cluster.router.newly_doubted():
            if pools.room != 0:
                pools.by_id[state.id].open_ahead()

    def sources_of(self, config: RuntimeConfig) -> Sources:
        """Return what `Discovery.prepare` does; files may be invalid in a process that joins others."""
        return self.discovery.prepare(config, may_fail=self.cluster.process.joins)

    def read_sources(self) -> None:
        """Begin with the sources of endpoints. Raises `ConfigError`."""
        self.discovery.commit(self.sources_of(self.config), self.config, self.cluster.now())

    def known(self) -> dict[str, Any]:
        """Return the discovered endpoints of all clusters by name, for `hold` in another process."""
        return {plane.cluster.name: plane.discovery.known() for plane in (self, *self.named.values())}

    def hold(self, known: dict[str, Any]) -> None:
        """Give discovery sources without an answer the endpoints that another process has discovered."""
        for plane in (self, *self.named.values()):
            plane.discovery.hold(known.get(plane.cluster.name, {}))

    async def start(self) -> None:
        """Look up the endpoints once."""
        await self.discovery.start(self.cluster.now())

    def begin(self) -> None:
        """Begin what runs in the background: the route watch, active checks, sharing with other units."""
        now = self.cluster.now()
        self._has_begun = True
        self.cluster.pools.routes.sweep(now)
        self.checks.sweep(now)
        if self.shared is not None:
            self.shared.start()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight, waiting, being received or tunnelled."""
        cluster = self.cluster
        return not (
            cluster.router.in_flight or len(cluster.queue) or cluster.receiving or len(cluster.tunnels)
        )

    def sweep(self, now: float) -> None:
        """Run periodic work; called with every sweep of the client connections."""
        self.cluster.sweep(now)
        if self.sweep_siblings is not None:
            self.sweep_siblings(now)
        self.checks.sweep(now)
        self._measure_doubted()
        self.state_log.sweep(now)
        self.discovery.tick(now)
        self.load_probes.sweep(now)
        self.recording.tick(now)
        self.explanations.tick(now)
        if self.shared is not None:
            self.shared.sweep(now)
        if self.shared_limits is not None:
            self.shared_limits.sweep()

    async def stop(self) -> None:
        """Close what is waiting, tunnelled or hedged, and stop everything that runs in the background."""
        self.cluster.close()
        self.checks.stop()
        self.load_probes.stop()
        if self.shared is not None:
            await self.shared.stop()
        if self.shared_limits is not None:
            await self.shared_limits.stop()
        await self.discovery.stop()
        await self.cluster.pools.close()
        self.recording.close()

    def release(self) -> None:
        """Let go of what is large, belongs to others or refers back to this, after `stop`: then nothing of the cluster
        waits for the garbage collector, which would hold up all requests."""
        self.config = replace(self.config, upstream_tls=UpstreamTls())
        self.cluster.pools.release()
        self.access_log = self.cluster.journal = self.cluster.hedges = None
        self.cluster.router.release()
        del self.registry, self.discovery, self.recording

    # --- endpoints

    def replace_endpoints(self, endpoints: list[Endpoint]) -> None:
        """Replace the endpoints; requests in flight at removed ones finish. No endpoint is new at the start."""
        self.cluster.pools.replace(endpoints)  # first: the router sends waiting requests at once
        self.cluster.router.replace(endpoints, warms=self._has_begun)
        self._link_pools()
        self.checks.update()

    def put_endpoint(self, endpoint: Endpoint) -> None:
        """Add or change one endpoint, without a scan of the others."""
        pools, router = self.cluster.pools, self.cluster.router
        pools.put(endpoint)  # first: the router sends waiting requests at once
        router.put(endpoint)
        router.find(endpoint.id).connections = pools.by_id[endpoint.id]
        self.checks.update_one(endpoint.id, endpoint.address)

    def drop_endpoint(self, endpoint_id: str) -> None:
        """Remove one endpoint; its requests in flight finish."""
        self.cluster.pools.drop(endpoint_id)
        self.cluster.router.drop(endpoint_id)
        self.checks.update_one(endpoint_id, None)

    def _link_pools(self) -> None:
        for state in self.cluster.router.states:
            state.connections = self.cluster.pools.by_id[state.id]


def policy_key(spec: PolicySpec) -> int:
    """Return a key of the policy and the version of its files, the same in every process and never 0."""
    return key_of(json.dumps([spec.spec, spec.library.versions], sort_keys=True))
