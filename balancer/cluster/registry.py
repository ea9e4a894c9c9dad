"""Endpoint registry: merges the endpoints of the configuration, of commands and of discovery into one set.

Each source is replaced as a whole. If several sources name the same id, the configuration takes precedence over
commands, and commands over discovery, whose sources are in the order of the configuration. An endpoint's admin state is
kept as long as any source names its id. Changes are atomic with respect to requests. A command updates one endpoint
without rebuilding the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from balancer.cluster.cluster import Cluster
from balancer.cluster.runtime_config import RuntimeConfig
from balancer.config.problems import ConfigError
from balancer.config.schema.endpoint import EndpointConfig
from balancer.errors import CommandRefused
from policies.errors import UnknownEndpoint, some_of
from policies.facts import AdminState, Endpoint

CONFIGURATION = "configuration"
COMMAND = "command"

MOST_AWAITED = 1000
"""Maximum number of endpoints whose changes wait until discovery finds them here."""

LONGEST_AWAITED = 600.0
"""Seconds for which they wait, beyond the longest `max_ttl`: the endpoint may have been removed elsewhere by then."""


@dataclass(frozen=True, slots=True)
class Member:
    """Endpoint and the source that names it."""

    config: EndpointConfig
    source: str


@dataclass(frozen=True, slots=True)
class Awaited:
    """Changes of an endpoint that is not found here yet; they wait `until` then."""

    state: AdminState | None
    weight: float | None
    until: float


class EndpointOwner(Protocol):
    """What the registry needs of the control plane: the configuration in force, the proxy, and changes of endpoints."""

    config: RuntimeConfig
    cluster: Cluster

    def replace_endpoints(self, endpoints: list[Endpoint]) -> None: ...
    def put_endpoint(self, endpoint: Endpoint) -> None: ...
    def drop_endpoint(self, endpoint_id: str) -> None: ...


class EndpointRegistry:
    """Endpoints of the balancer by id, in order."""

    def __init__(self, control_plane: EndpointOwner, config: RuntimeConfig) -> None:
        self._control_plane = control_plane
        self._lists: dict[str, dict[str, EndpointConfig]] = {
            CONFIGURATION: by_id(config.settings.endpoints),
            COMMAND: {},
        }
        self._weights: dict[str, float] = {}
        self._awaited: dict[str, Awaited] = {}
        self._order: tuple[str, ...] = ()  # of the discovery sources: the first takes precedence
        self._holding: set[str] = set()  # sources whose list is what a reload would have removed
        self._members = self._merged(self._lists)

    # --- reading

    @property
    def members(self) -> Mapping[str, Member]:
        """All endpoints by id, with the weights in force."""
        return self._members

    def member(self, endpoint_id: str) -> Member:
        """Look up an endpoint. Raises `UnknownEndpoint`."""
        try:
            return self._members[endpoint_id]
        except KeyError:
            known = some_of(self._members) or "none"
            raise UnknownEndpoint(f"no endpoint '{endpoint_id}'; known: {known}") from None

    def named(self, source: str) -> list[EndpointConfig]:
        """Return the endpoints that a source names."""
        return list(self._lists.get(source, {}).values())

    def orders(self) -> tuple[list[EndpointConfig], list[str], dict[str, float], dict[str, str]]:
        """Runtime overrides made by commands: endpoints added, ids removed, and by id weights and admin states."""
        kept = self._lists[CONFIGURATION]
        configured = self._control_plane.config.settings.endpoints
        removed = [config.id for config in configured if config.id not in kept]
        here = {state.id: state.admin_state for state in self._control_plane.cluster.router.states}
        awaited = self._awaiting()
        found = {id_: one.state for id_, one in awaited.items() if one.state is not None} | here
        states = {id_: state.value for id_, state in found.items() if state is not AdminState.READY}
        weights = {id_: one.weight for id_, one in awaited.items() if one.weight is not None} | self._weights
        return list(self._lists[COMMAND].values()), removed, weights, states

    # --- changing

    def replace_overrides(
        self, added: Iterable[EndpointConfig], removed: Iterable[str], weights: Mapping[str, float]
    ) -> None:
        """Replace all runtime overrides by those of another process. Raises `ConfigError`, and then changes nothing."""
        before, gone = self._weights, set(removed)
        configured = self._control_plane.config.settings.endpoints
        kept = by_id(config for config in configured if config.id not in gone)
        self._weights = dict(weights)
        try:
            self._install({**self._lists, CONFIGURATION: kept, COMMAND: by_id(added)})
        except ConfigError:
            self._weights = before
            raise
        for id_ in self._weights.keys() - self._members.keys():
            self.expect(id_, weight=self._weights.pop(id_))

    def warm(self, config: RuntimeConfig) -> None:
        """Create the TLS contexts that the current endpoints need under another runtime configuration. Raises
        `ConfigError`."""
        config.upstream_tls.prepare(member.config for member in self._members.values())

    def under(self, config: RuntimeConfig) -> list[Endpoint]:
        """Return the endpoints that there are under another runtime configuration."""
        lists = {**self._lists, CONFIGURATION: by_id(config.settings.endpoints)}
        return [member.config.endpoint() for member in self._merged(lists).values()]

    def apply(self, config: RuntimeConfig, found: Mapping[str, Iterable[EndpointConfig] | None]) -> None:
        """Apply another runtime configuration with its discovery sources: the endpoints `found` by each, None where
        they are unchanged or there is no answer yet. Weights set by command stay for endpoints added by command alone.

        A new source without any answer holds the endpoints that would be removed, until it has one.
        """
        named = {endpoint.id for endpoint in config.settings.endpoints}
        added = {id_: config for id_, config in self._lists[COMMAND].items() if id_ not in named}
        self._weights = {id_: weight for id_, weight in self._weights.items() if id_ in added}
        self._awaited = {id_: replace(one, weight=None) for id_, one in self._awaited.items()}
        lists = {CONFIGURATION: by_id(config.settings.endpoints), COMMAND: added}
        for source, endpoints in found.items():
            if endpoints is not None or source in self._lists:
                lists[source] = self._lists[source] if endpoints is None else by_id(endpoints)
        before, self._order = self._order, tuple(found)
        kept = self._merged(lists)
        going = {id_: self._lists[one.source][id_] for id_, one in self._members.items() if id_ not in kept}
        held = {source: going for source in found if going and source not in lists and source not in before}
        self._holding = {source for source in found if source in self._holding and found[source] is None}
        self._holding.update(held)
        self._install(lists | held)

    def replace(self, source: str, endpoints: Iterable[EndpointConfig]) -> None:
        """Replace the endpoints of a discovery source; does nothing if they are unchanged."""
        wanted = by_id(endpoints)
        self._holding.discard(source)
        if source not in self._lists or [*wanted.values()] != [*self._lists[source].values()]:
            self._install({**self._lists, source: wanted})

    def hold(self, source: str, endpoints: Iterable[EndpointConfig]) -> None:
        """Use the endpoints that another process knows of a discovery source, if that has no answer yet."""
        held = by_id(endpoints)
        if source in self._holding or (held and source not in self._lists):
            self._install({**self._lists, source: held})

    def add(self, config: EndpointConfig) -> None:
        """Add an endpoint by command. Raises `CommandRefused` if its id is in use, `ConfigError` if a file in its
        table `tls` is faulty."""
        if config.id in self._members:
            source = self._members[config.id].source
            raise CommandRefused(f"id: '{config.id}' is used already ({source}); every id must be unique")
        self._put(Member(config, COMMAND))
        self._lists[COMMAND][config.id] = config

    def remove(self, endpoint_id: str) -> int:
        """Remove an endpoint by command; returns its number of requests in flight, which finish.

        Raises `UnknownEndpoint`, and `CommandRefused` for a discovered endpoint, which discovery would add again.
        """
        source = self.member(endpoint_id).source
        if source not in (CONFIGURATION, COMMAND):
            raise CommandRefused(
                f"'{endpoint_id}' comes from {source}, which would bring it back: drain it instead"
            )
        state = self._control_plane.cluster.router.find(endpoint_id)
        lists = self._lists
        _, *others = (name for name in self._ranked(lists) if endpoint_id in lists.get(name, ()))
        if others:
            self._put(self._weighed(lists[others[0]][endpoint_id], others[0]))
        else:
            self._drop(endpoint_id)
        del self._lists[source][endpoint_id]
        return state.in_flight_here

    def change(self, endpoint_id: str, state: AdminState | None = None, weight: float | None = None) -> None:
        """Change the admin state or the weight of an endpoint. Raises `UnknownEndpoint`."""
        source = self.member(endpoint_id).source
        if weight is not None:
            self._weights[endpoint_id] = weight
            self._put(self._weighed(self._lists[source][endpoint_id], source))
        if state is not None:
            self._set_state(endpoint_id, state)

    def expect(self, endpoint_id: str, state: AdminState | None = None, weight: float | None = None) -> None:
        """Apply a sibling's change to an endpoint now, or once discovery has found it."""
        if endpoint_id in self._members:
            self.change(endpoint_id, state, weight)
            return
        before = self._awaited.pop(endpoint_id, None) or Awaited(None, None, 0.0)
        names = self._control_plane.config.settings.discovery.dns
        longest = LONGEST_AWAITED + max((name.max_ttl for name in names), default=0.0)
        self._awaited[endpoint_id] = Awaited(
            state or before.state,
            before.weight if weight is None else weight,
            self._control_plane.cluster.now() + longest,
        )
        for excess in [*self._awaited][:-MOST_AWAITED]:
            del self._awaited[excess]

    def _awaiting(self) -> dict[str, Awaited]:
        """Return the changes that wait for their endpoints, and forget those that have waited for too long."""
        now = self._control_plane.cluster.now()
        self._awaited = {id_: each for id_, each in self._awaited.items() if now < each.until}
        return dict(self._awaited)

    def _set_state(self, endpoint_id: str, state: AdminState) -> None:
        self._control_plane.cluster.router.set_admin_state(endpoint_id, state)
        pool = self._control_plane.cluster.pools.by_id[endpoint_id]
        pool.route.is_down = state is AdminState.MAINTENANCE
        if pool.route.is_down:
            pool.close_idle()

    # --- in force

    def _ranked(self, sources: Iterable[str]) -> Iterable[str]:
        """Sources, the one that takes precedence first; some may have no list."""
        return dict.fromkeys((CONFIGURATION, COMMAND, *self._order, *sources))

    def _merged(self, lists: Mapping[str, Mapping[str, EndpointConfig]]) -> dict[str, Member]:
        members: dict[str, Member] = {}
        for source in self._ranked(lists):
            for config in lists.get(source, {}).values():
                members.setdefault(config.id, self._weighed(config, source))
        return members

    def _weighed(self, config: EndpointConfig, source: str) -> Member:
        """Member with the weight that a command has set, if any."""
        weight = self._weights.get(config.id, config.weight)
        if weight != config.weight:
            config = config.model_copy(update={"weight": weight})
        return Member(config, source)

    def _put(self, member: Member) -> None:
        """Add or change one endpoint. Raises `ConfigError`, and then changes nothing here."""
        pools, config = self._control_plane.cluster.pools, member.config
        pools.tls.prepare([config])
        self._members[config.id] = member
        pools.configs[config.id] = config
        self._control_plane.put_endpoint(config.endpoint())

    def _drop(self, endpoint_id: str) -> None:
        """Remove one endpoint; it is listed as leaving while requests are in flight."""
        pools = self._control_plane.cluster.pools
        del self._members[endpoint_id]
        self._weights.pop(endpoint_id, None)
        self._control_plane.drop_endpoint(endpoint_id)
        pools.configs.pop(endpoint_id, None)

    def _install(self, lists: dict[str, dict[str, EndpointConfig]]) -> None:
        """Put new lists of endpoints into effect. Raises `ConfigError`, and then changes nothing."""
        cluster, members = self._control_plane.cluster, self._merged(lists)
        tls = self._control_plane.config.upstream_tls
        tls.prepare(member.config for member in members.values())
        gone = [id_ for id_ in self._members if id_ not in members]
        self._lists, self._members = lists, members
        for id_ in gone:
            self._weights.pop(id_, None)
        cluster.pools.tls = tls
        cluster.pools.configs = {id_: member.config for id_, member in members.items()}
        self._control_plane.replace_endpoints([member.config.endpoint() for member in members.values()])
        for id_, awaited in self._awaiting().items():
            if id_ in members:
                del self._awaited[id_]
                self.change(id_, awaited.state, awaited.weight)


def by_id(configs: Iterable[EndpointConfig]) -> dict[str, EndpointConfig]:
    """Configurations by id, in order; the first wins if an id repeats."""
    found: dict[str, EndpointConfig] = {}
    for config in configs:
        found.setdefault(config.id, config)
    return found
