"""Conditions of endpoints, panic and faults of the policy in the sibling processes, for the one process that writes the
log for all."""

from __future__ import annotations

from collections.abc import Sequence

from balancer.cluster.condition import DOWN, Condition
from balancer.sharing.shared_counters import Page, SharedCounters, key_of
from policies.endpoint.state import EndpointState

RANKED = tuple(Condition)
"""Conditions by the number that stands for them in the shared memory."""

RANKS = {condition: rank for rank, condition in enumerate(RANKED)}


class SiblingConditions:
    """Writes the conditions to page `index` of `board`, and reads those of the other pages.

    `cluster` is the name of the cluster. Panic and faults of the policy are published for the default cluster only.
    """

    def __init__(self, board: SharedCounters, index: int, cluster: str = "") -> None:
        self._cluster = cluster
        self._own = board.pages[index]
        self._others = [page for at, page in enumerate(board.pages) if at != index]
        self._rows: list[tuple[Page, dict[int, int]]] = []
        self._keys: dict[str, int] = {}

    def begin(self, states: Sequence[EndpointState]) -> None:
        """Look up the rows of the other processes; call it before a round of `worst`. O(endpoints)."""
        self._rows = [(page, page.rows()) for page in self._others]
        self._keys = {
            state.id: self._keys.get(state.id) or key_of(state.id, self._cluster) for state in states
        }

    def publish(self, state: EndpointState, condition: Condition) -> None:
        """Publish the condition that an endpoint has in this process."""
        if state.published is not None:
            self._own.conditions[state.published_at] = RANKS[condition]

    def publish_process(self, *, is_in_panic: bool, failing_policy: int) -> None:
        """Publish whether this process is in panic, and the key of its policy if that has failed, else 0."""
        if self._cluster:
            return
        self._own.is_in_panic = is_in_panic
        self._own.failing_policy = failing_policy

    @property
    def in_panic(self) -> int:
        """Number of other processes in panic."""
        return 0 if self._cluster else sum(page.is_in_panic for page in self._others)

    def failing(self, policy: int) -> int:
        """Return the number of other processes in which this policy has failed."""
        return 0 if self._cluster else sum(page.failing_policy == policy for page in self._others)

    def worst(self, state: EndpointState) -> tuple[Condition, int] | None:
        """Return the worst condition that other processes find an endpoint down with, and in how many it is; None if
        it is down in none.
        """
        key = self._keys[state.id]
        ranks = [page.conditions[rows[key]] for page, rows in self._rows if key in rows]
        down = [rank for rank in ranks if RANKED[rank] in DOWN]
        return (RANKED[max(down)], down.count(max(down))) if down else None
