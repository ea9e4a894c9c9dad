"""Log of changes of state: one line for the operator when an endpoint goes down or returns, for panic and for a policy
that fails.

It compares the present state with the last one about once a second, so requests cost nothing. Lines are bounded per
endpoint: an endpoint that flaps has `BURST` lines, then one per `PAUSE`, which says how many changes were left out.
One process writes the log for its siblings, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from balancer.cluster.active_checks import Checks
from balancer.cluster.condition import DOWN, Condition, cause_of, condition_of, fault_of
from balancer.log.output import complain
from balancer.sharing.shared_counters import Page, SharedCounters, key_of
from balancer.upstream.pools import Pools
from policies.endpoint.state import EndpointState
from policies.routing.router import Router

RANKED = tuple(Condition)
"""Conditions by the number that stands for them in the shared memory."""

RANKS = {condition: rank for rank, condition in enumerate(RANKED)}


class SiblingConditions:
    """Conditions of endpoints, panic and faults of the policy in the sibling processes.

    Writes the conditions to page `index` of `board`, and reads those of the other pages.

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


PERIOD = 1.0
"""Seconds between two comparisons."""

BURST = 6
"""Lines of one endpoint that are printed without a pause."""

PAUSE = 30.0
"""Seconds after which an endpoint may have one more line beyond `BURST`."""

MAX_LINES = 20
"""Maximum number of lines about endpoints in one comparison: a region of a thousand may go down at once."""

QUIET = frozenset((Condition.READY, Condition.WARMING, Condition.FULL))
"""Conditions of an endpoint that takes requests; changes between them are not logged."""

Key = tuple[Condition, int]
"""A condition without the differences that are not logged, and the number of ejections so far."""


@dataclass(slots=True)
class Shown:
    """What the log has said about one endpoint: its last key, since when, changes left out, and its free lines."""

    since: float
    refilled_at: float
    key: Key = (Condition.READY, 0)
    seen: Key = (Condition.READY, 0)
    left_out: int = 0
    lines: float = BURST

    def take(self, now: float) -> bool:
        """Use one of the endpoint's lines; return whether there was one."""
        self.lines = min(float(BURST), self.lines + (now - self.refilled_at) / PAUSE)
        self.refilled_at = now
        if self.lines < 1.0:
            return False
        self.lines -= 1.0
        return True


class StateLog:
    """Changes of state of the endpoints of `router`, of panic and of the policy. `say` writes a line.

    With several processes, `siblings` are the conditions in the others, and the first process writes for all.
    `policy_key` identifies the policy in force and its version in all of them.
    """

    def __init__(
        self, router: Router, pools: Pools, checks: Checks, say: Callable[[str], None] = complain
    ) -> None:
        self.say = say
        self.siblings: SiblingConditions | None = None
        self.policy_key = 0
        self._router = router
        self._pools = pools
        self._checks = checks
        self._shown: dict[str, Shown] = {}
        self._panics: dict[str | None, float] = {}  # by region, None: everywhere; since when
        self._panic_elsewhere_since: float | None = None
        self._faulty_installations: dict[str, int] = {}  # by effect, the last with a line
        self._faulty_elsewhere = 0
        self._next_at = 0.0

    def sweep(self, now: float) -> None:
        """Log what has changed since the last comparison, if that is `PERIOD` seconds ago."""
        if now < self._next_at:
            return
        self._next_at = now + PERIOD
        if self.siblings is not None:
            failing = self.policy_key if self._router.last_fault is not None else 0
            is_in_panic = bool(self._router.health.panic)
            self.siblings.publish_process(is_in_panic=is_in_panic, failing_policy=failing)
        self._log_endpoints(now)
        self._log_panic(now)
        self._log_policy()

    def _log_endpoints(self, now: float) -> None:
        states, siblings = self._router.states, self.siblings
        if siblings is not None:
            siblings.begin(states)
        printed = unprinted = 0
        for state in states:
            condition = condition_of(state, self._pools.by_id[state.id])
            shown = self._shown.get(state.id)
            if shown is None:
                shown = self._shown[state.id] = Shown(now, now)
            key = (Condition.READY if condition in QUIET else condition, 0)
            if condition is Condition.EJECTED:
                key = (condition, state.record.count)
            elsewhere = None
            if siblings is not None:
                siblings.publish(state, condition)
                elsewhere = siblings.worst(state) if condition in QUIET else None
            if elsewhere is not None:  # already logged, where it was down here with the same condition
                key = shown.key if shown.key[0] is elsewhere[0] else (elsewhere[0], 0)
            if key != shown.seen:
                shown.left_out += 1
                shown.seen = key
            if not shown.left_out or not shown.take(now):
                continue
            if printed < MAX_LINES:
                printed += 1
                self.say(self._line(state, condition, elsewhere, shown, now))
            else:
                unprinted += 1
            if key[0] is not shown.key[0]:
                shown.since = now
            shown.key, shown.left_out = key, 0
        if unprinted:
            self.say(
                f"endpoints: {unprinted} more have changed at the same time; see 'balancer endpoints list'"
            )
        if len(self._shown) > len(states):
            known = {state.id for state in states}
            self._shown = {id_: shown for id_, shown in self._shown.items() if id_ in known}

    def _line(
        self,
        state: EndpointState,
        condition: Condition,
        elsewhere: tuple[Condition, int] | None,
        shown: Shown,
        now: float,
    ) -> str:
        if elsewhere is not None:
            word, number = elsewhere
            line = f"endpoint {state.id} is down in {_others(number)}: {word.value}"
        else:
            line = f"endpoint {state.id} {self._change(state, condition, shown, now)}"
        left_out = shown.left_out - 1
        return f"{line} ({left_out} changes before are left out)" if left_out else line

    def _change(self, state: EndpointState, condition: Condition, shown: Shown, now: float) -> str:
        pool, check = self._pools.by_id[state.id], self._checks.by_id.get(state.id)
        if condition is Condition.EJECTED:
            return f"is ejected for {max(0.0, (state.record.until or now) - now):.0f} s: {cause_of(state)}"
        if condition in DOWN:
            fault = fault_of(condition, pool, check.state if check is not None else None)
            return f"is down: {condition.value}: {fault}"
        if condition not in QUIET:
            return "is in maintenance" if condition is Condition.MAINTENANCE else "is draining"
        before, seconds = shown.key[0], now - shown.since
        if before is Condition.EJECTED:
            return f"is back: its ejection is over after {seconds:.0f} s"
        return f"is back after {seconds:.0f} s" if before in DOWN else "is ready"

    def _log_panic(self, now: float) -> None:
        panic = self._router.health.panic
        places: list[str | None] = [None] if panic.is_everywhere else []
        places += sorted(panic.regions)
        for place in places:
            if place not in self._panics:
                self._panics[place] = now
                self.say(f"panic {_where(place)}: health is ignored, {self._down(place)}")
        for place in [place for place in self._panics if place not in places]:
            seconds = now - self._panics.pop(place)
            self.say(f"panic {_where(place)} is over after {seconds:.0f} s")
        if self.siblings is not None:
            self._log_panic_elsewhere(now, 0 if places else self.siblings.in_panic)

    def _log_panic_elsewhere(self, now: float, processes: int) -> None:
        """Log that only other processes are in panic, and its end."""
        since = self._panic_elsewhere_since
        if processes and since is None:
            self._panic_elsewhere_since = now
            self.say(f"panic in {_others(processes)}: health is ignored there")
        elif not processes and since is not None:
            self._panic_elsewhere_since = None
            if not self._panics:
                self.say(f"panic in other processes is over after {now - since:.0f} s")

    def _down(self, region: str | None) -> str:
        there = [state for state in self._router.states if state.enabled and region in (None, state.region)]
        conditions = (condition_of(state, self._pools.by_id[state.id]) for state in there)
        return f"{sum(condition in DOWN for condition in conditions)} of {len(there)} endpoints are down"

    def _log_policy(self) -> None:
        """Log the first fault at a pick and the first in another hook of each installation of a policy, and that one
        has failed only elsewhere."""
        active = self._router.active
        installation = active.installations
        for fault, effect in (
            (
                active.pick_fault,
                "such picks are made by the fallback policy and counted, and not printed again",
            ),
            (active.hook_fault, "faults of this hook are not counted, and not printed again"),
        ):
            if fault is not None and self._faulty_installations.get(effect) != installation:
                self._faulty_installations[effect] = installation
                self.say(f"policy: {fault.removeprefix('policy ')}; {effect}")
        if active.last_fault is not None or self.siblings is None or installation == self._faulty_elsewhere:
            return
        number = self.siblings.failing(self.policy_key)
        if number:
            self._faulty_elsewhere = installation
            named = f"it has failed in {_others(number)}"
            self.say(f"policy: {named}; 'balancer status' names the fault and counts fallback picks")


def _others(processes: int) -> str:
    return "1 other process" if processes == 1 else f"{processes} other processes"


def _where(region: str | None) -> str:
    return "everywhere" if region is None else f"in region {region}"
