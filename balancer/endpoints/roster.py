"""Who the endpoints are: those of the configuration, those added by command, and those discovered, as one list.

Rule of this file: each source speaks for its own and is replaced as a whole. Where two name the same id, the
configuration goes before commands, and commands before discovery. What an operator has said of an endpoint stays with
its id for as long as anybody names it. Every change is made in one go: no request sees half of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from balancer.errors import EndpointConflict
from balancer.settings.sections import EndpointConfig
from balancer.settings.transports import transports_of
from balancer.tls.contexts import TlsProblem
from policies.errors import UnknownEndpoint
from policies.facts import Standing

if TYPE_CHECKING:
    from balancer.settings.terms import Terms
    from balancer.unit import Unit
    from policies.state import EndpointState

CONFIGURATION = "configuration"
COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Member:
    """One endpoint and who names it."""

    config: EndpointConfig
    source: str


class Roster:
    """The endpoints of a unit, by id, in order."""

    def __init__(self, unit: Unit, terms: Terms) -> None:
        self._unit = unit
        self._lists: dict[str, tuple[EndpointConfig, ...]] = {CONFIGURATION: terms.endpoints, COMMAND: ()}
        self._weights: dict[str, float] = {}
        self._leaving: list[EndpointState] = []
        self._members = self._merged(self._lists)

    # --- reading

    @property
    def members(self) -> Mapping[str, Member]:
        """All of them, with the weights in force."""
        return self._members

    def member(self, endpoint_id: str) -> Member:
        """Raises `UnknownEndpoint`."""
        try:
            return self._members[endpoint_id]
        except KeyError:
            raise UnknownEndpoint(f"no endpoint '{endpoint_id}'; known: {', '.join(self._members)}") from None

    def count(self, source: str) -> int:
        """How many endpoints a source names."""
        return len(self._lists.get(source, ()))

    @property
    def leaving(self) -> list[EndpointState]:
        """Those that were removed and still have requests in flight."""
        self._leaving = [state for state in self._leaving if state.in_flight_here]
        return list(self._leaving)

    def orders(self) -> tuple[list[EndpointConfig], list[str], dict[str, float]]:
        """What commands have made of the configuration: endpoints added, ids removed, and weights."""
        kept = {config.id for config in self._lists[CONFIGURATION]}
        removed = [config.id for config in self._unit.terms.endpoints if config.id not in kept]
        return list(self._lists[COMMAND]), removed, dict(self._weights)

    # --- changing

    def obey(
        self, added: Iterable[EndpointConfig], removed: Iterable[str], weights: Mapping[str, float]
    ) -> None:
        """The same commands at once, in another process. Raises `TlsProblem`, and then changes nothing."""
        before, gone = self._weights, set(removed)
        kept = tuple(config for config in self._unit.terms.endpoints if config.id not in gone)
        self._weights = dict(weights)
        try:
            self._install({**self._lists, CONFIGURATION: kept, COMMAND: tuple(added)})
        except TlsProblem:
            self._weights = before
            raise

    def warm(self, terms: Terms) -> None:
        """Make what those that there are need for TLS under other terms. Raises `TlsProblem`."""
        terms.upstream_tls.of_these([member.config for member in self._members.values()])

    def adopt(self, terms: Terms) -> None:
        """Another configuration: it wins for the endpoints that it names, over what commands have made of them."""
        named = {endpoint.id for endpoint in terms.endpoints}
        added = tuple(config for config in self._lists[COMMAND] if config.id not in named)
        self._weights = {id_: weight for id_, weight in self._weights.items() if id_ not in named}
        self._install({**self._lists, CONFIGURATION: terms.endpoints, COMMAND: added})

    def replace(self, source: str, endpoints: Iterable[EndpointConfig]) -> None:
        """What a source of discovery names now; nothing is done where that is what it named before."""
        wanted = tuple(endpoints)
        if wanted != self._lists.get(source, ()):
            self._install({**self._lists, source: wanted})

    def forget(self, sources: Iterable[str]) -> None:
        """These sources are there no more."""
        kept = {source: named for source, named in self._lists.items() if source not in set(sources)}
        if len(kept) != len(self._lists):
            self._install(kept)

    def add(self, config: EndpointConfig) -> None:
        """By command. Raises `EndpointConflict`, or `TlsProblem` for a file of its own table `tls`."""
        if config.id in self._members:
            source = self._members[config.id].source
            raise EndpointConflict(f"id: '{config.id}' is used already ({source}); every id must be unique")
        self._install({**self._lists, COMMAND: (*self._lists[COMMAND], config)})

    def remove(self, endpoint_id: str) -> int:
        """No new request goes there; returns how many are in flight, which end as they would have.

        Raises `UnknownEndpoint`, and `EndpointConflict` for one that its discovery would only bring back.
        """
        source = self.member(endpoint_id).source
        if source not in (CONFIGURATION, COMMAND):
            raise EndpointConflict(
                f"'{endpoint_id}' comes from {source}, which would bring it back: set it down instead"
            )
        in_flight = self._unit.router.find(endpoint_id).in_flight_here
        kept = tuple(config for config in self._lists[source] if config.id != endpoint_id)
        self._install({**self._lists, source: kept})
        return in_flight

    def change(self, endpoint_id: str, state: Standing | None = None, weight: float | None = None) -> None:
        """Raises `UnknownEndpoint`."""
        self.member(endpoint_id)
        if weight is not None:
            self._weights[endpoint_id] = weight
            self._install(self._lists)
        if state is not None:
            self._set_state(endpoint_id, state)

    def _set_state(self, endpoint_id: str, state: Standing) -> None:
        self._unit.router.set_standing(endpoint_id, state)
        pool = self._unit.pools.by_id[endpoint_id]
        pool.route.is_down = state is Standing.DOWN
        if pool.route.is_down:
            pool.close_idle()

    # --- in force

    def _merged(self, lists: Mapping[str, tuple[EndpointConfig, ...]]) -> dict[str, Member]:
        members: dict[str, Member] = {}
        for source, configs in lists.items():
            for config in configs:
                weight = self._weights.get(config.id, config.weight)
                if weight != config.weight:
                    config = config.model_copy(update={"weight": weight})
                members.setdefault(config.id, Member(config, source))
        return members

    def _install(self, lists: dict[str, tuple[EndpointConfig, ...]]) -> None:
        """Raises `TlsProblem`, and then changes nothing."""
        unit, members = self._unit, self._merged(lists)
        tls = unit.terms.upstream_tls.of_these([member.config for member in members.values()])
        gone = [id_ for id_ in self._members if id_ not in members]
        self._leaving = [*self.leaving, *map(unit.router.find, gone)]
        self._lists, self._members = lists, members
        for id_ in gone:
            self._weights.pop(id_, None)
        unit.pools.tls = tls
        unit.pools.transports = transports_of(member.config for member in members.values())
        unit.pools.without_reuse = without_reuse(member.config for member in members.values())
        unit.replace_endpoints([member.config.endpoint() for member in members.values()])


def without_reuse(configs: Iterable[EndpointConfig]) -> frozenset[str]:
    """The ids of endpoints that get a new connection for each request."""
    return frozenset(config.id for config in configs if not config.keep_alive)
