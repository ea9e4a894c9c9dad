"""Accounts of tokens per endpoint: what waits there, what its KV cache holds, and how fast it computes prompts.

All is known from what was sent and what came back. A prompt waits from its assignment to the first token of its answer.
Whatever hooks are lost, what was counted in is counted out when the attempt is settled, and nothing is kept of an
endpoint that has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind, Region, ReportedLoad, RequestFacts
from policies.inference.evidence import Attempt, CacheEvidence
from policies.inference.index import OWN_BYTES, Place, PrefixIndex
from policies.inference.news import PrefixNews
from policies.inference.pace import Pace, Span
from policies.prompts import NOT_ARRIVED, ONLY_THERE, SENT, Answer, Prompt
from policies.steelyard.least_cost import round_trip

_OK: Final = OutcomeKind.OK

CAPACITY: Final = 500_000.0
"""Tokens that the KV cache of an endpoint is assumed to hold until it is known better."""

STALLED: Final = 3.0
"""Multiple of its expected seconds after which a prompt that is being computed counts as overdue."""

MOST_REFUSED_S: Final = 30.0
"""Longest time in seconds for which prompts that were refused at once count as waiting: as long as a measured pace."""

MOST_MODELS: Final = 256
"""Models whose tokens per byte are learned. A request may name any, so their number is bounded."""

RATIO_KEEP: Final = 0.95
"""Factor by which an answer's weight falls with each later one of its model."""


class EndpointTokens:
    """Account of one endpoint as of the last look, of all processes and balancers.

    `waiting` tokens of `queue` requests are to be computed, which takes `wait` seconds; the prompt that is computed is
    `overdue` by so many. `resident` tokens of prompts are in its KV cache, which holds `capacity`. Of the request that
    is routed, `held` blocks, which are `cached` tokens, are there, and `added` are not. `slowness` is its factor.
    `reported` is its last report, of `reported_at`. `computed_at` is that of the last first token of this process, of
    whose `span` the pace is not learned yet. `evidence` is what answers say of its cache. Until `refused_until` it
    would compute the prompts that it refused at once: it gets no more prompts than others, which compute theirs.
    `distance` is a round trip to its region, 0 if unknown.
    """

    def __init__(self, state: EndpointState, place: Place) -> None:
        self.state = state
        self.address = state.endpoint.address
        self.place = place
        self.attempts: dict[Prompt, Attempt] = {}
        self.unanswered: dict[Prompt, Attempt] = {}  # those that wait, in order
        self.own_waiting = self.own_resident = 0.0  # of this process
        self.waiting = self.queue = self.wait = self.overdue = self.resident = self.capacity = 0.0
        self.distance = 0.0
        self.cached = self.added = 0.0
        self.held = 0
        self.evidence = CacheEvidence()
        self.slowness = 1.0
        self.computed_at, self.span = -1e300, Span()
        self.refused_until = -1e300
        self.reported = ReportedLoad()
        self.reported_at = -1e300
        self.stated: int | None = None  # capacity that was reported and is not yet assumed


class TokenAccounts:
    """The accounts of all endpoints, the prefix index, and what is learned from answers.

    `capacity` is assumed of every endpoint at first and, with `corrects`, corrected by what answers state as cached.
    `news` are prefixes for other units, None while none listens; `has_changed` says that sums have since the last
    report. `is_shared`: the index is that of several processes.
    """

    def __init__(self, capacity: float, corrects: bool) -> None:
        self.pace = Pace()
        self._capacity = capacity
        self._corrects = corrects
        self._index: PrefixIndex | None = None
        self.is_shared = False
        self.news: PrefixNews | None = None
        self.has_changed = False
        self._accounts: dict[EndpointState, EndpointTokens] = {}
        self._ratios: dict[str, tuple[float, float]] = {}
        self._members: list[EndpointState] = []
        self._probed_at = -1e300
        self._due = 0.0
        self._next = 0

    @property
    def index(self) -> PrefixIndex:
        """The prefix index, made for the first prompt."""
        if self._index is None:
            self._index = PrefixIndex(memoryview(bytearray(OWN_BYTES)))
        return self._index

    def share(self, memory: memoryview) -> None:
        """Use this buffer, which all processes of the server have. Call it before the first request; it is kept."""
        if not self.is_shared:
            self._index = PrefixIndex(memory)
            self.is_shared = True
            self._accounts.clear()

    # --- hooks

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Forget the accounts of endpoints that have left, or that have another address."""
        self._members, kept = list(states), set(states)
        for state, account in list(self._accounts.items()):
            moved = account.address != state.endpoint.address
            if moved or state not in kept:
                for prompt in list(account.attempts):
                    self._end(account, prompt)
                self._publish(account)
                del self._accounts[state]
            if moved:  # to one that has none of it
                self.index.advance(account.place, account.place.capacity + 1.0)

    def tick(self, now: float) -> None:
        """Keep the endpoints' rows in the index, and learn how far their regions are away.

        The least handshake of a region counts: a slow one, which is not repeated while its connection lasts, would keep
        prompts that are cached nowhere away from one endpoint for ever.
        """
        nearest: dict[Region, float] = {}
        for state in self._accounts:
            nearest[state.region] = min(round_trip(state, inf), nearest.get(state.region, inf))
        for state, account in self._accounts.items():
            account.distance = nearest[state.region] if nearest[state.region] < inf else 0.0
            if not self.index.keep(account.place, now):
                account.place = self.index.place(account.state.id, now)

    def assigned(self, state: EndpointState, facts: RequestFacts, now: float) -> None:
        """Count a prompt in, and record its blocks as sent there."""
        prompt = facts.prompt
        if prompt is None:
            return
        account = self.account(state, now)
        place = account.place
        self._end(account, prompt)
        if self.is_shared or self.news is not None:
            self.update(account, now)
            if account.queue == 0.0:  # others know by that when it has begun
                self._computed(account, now)
        ratio = self._ratio(prompt.model)
        attempt = Attempt(prompt.blocks, max(1.0, prompt.tokens * ratio), prompt.is_streamed, now)
        if place.capacity == 0.0 or account.stated is not None:
            holds = self._capacity if account.stated is None else float(account.stated)
            account.stated = None
            self.index.assume(place, max(1.0, holds / (prompt.block_tokens * ratio)))
        attempt.after = place.sent
        attempt.ages = self.index.send(attempt.blocks, place)
        if self.news is not None:
            self.news.add(state, SENT, attempt.blocks)
        for age in attempt.ages:
            if age >= place.capacity:
                break
            attempt.held += 1
        prompt.cached = min(attempt.held * prompt.block_tokens * ratio, attempt.tokens - 1.0)
        prompt.added = attempt.added = attempt.tokens - prompt.cached
        account.attempts[prompt] = account.unanswered[prompt] = attempt
        account.own_waiting += attempt.added
        account.own_resident += attempt.tokens
        self._publish(account)

    def send_key(self, state: EndpointState, prompt: Prompt, key: int) -> None:
        """Record a key of a prompt, such as the hash of its session, as a block that this endpoint alone has."""
        self._accounts[state].attempts[prompt].keys.append(key)
        if self.news is not None:
            self.news.add(state, ONLY_THERE, [key])
        self.put_key(state, key)

    def put_key(self, state: EndpointState, key: int) -> None:
        """Record such a key without news for other units."""
        for other, account in self._accounts.items():
            if other is state:
                self.index.send([key], account.place)
            else:
                self.index.forget([key], account.place)

    def first_token(self, state: EndpointState, prompt: Prompt, now: float) -> None:
        """Count a prompt as computed, and learn from the time that it took."""
        account = self._accounts.get(state)
        attempt = account.attempts.get(prompt) if account is not None else None
        if account is None or attempt is None or not attempt.is_waiting:
            return
        if attempt.is_streamed:
            if self.is_shared:
                self.index.refresh(account.place)
            seconds = now - account.place.computed_at
            if attempt.sent_at >= account.place.computed_at:
                seconds = now - attempt.sent_at - account.distance
            self._measure(account, seconds, attempt.added, now)
        self._computed(account, now)
        self._compute(account, prompt, attempt)
        self._publish(account)

    def _measure(self, account: EndpointTokens, seconds: float, added: float, now: float) -> None:
        """Learn from a first token; if other units may have had one in the same step, when they have reported."""
        if self.news is None or not account.span.goes_on(now):
            self.learn_pace(account, now)
        account.span.add(seconds, added, now)
        if self.news is None:
            self.learn_pace(account, now)

    def learn_pace(self, account: EndpointTokens, now: float) -> None:
        """Learn from the last first tokens there, unless that is done."""
        state, span = account.state, account.span
        if not span.prompts:
            return
        # In the meantime the endpoint has served other balancers, too, of which some do not report when.
        unknown = max(0, state.units.believed - state.units.tokens.prompts)
        seconds, added = span.seconds / span.prompts, span.tokens / span.prompts
        seconds = max(0.0, seconds * (1.0 - min(1.0, unknown / max(1, state.in_flight))))
        if self.is_shared:
            self.index.refresh(account.place)
        measured = account.place.slowness
        slowness = measured.read(self.pace.mean, now)
        measured.learn(seconds, self.pace.seconds(added), now)
        # As at an endpoint of slowness 1: slow ones mostly see other lengths than fast ones.
        self.pace.learn(added, seconds / slowness)
        span.clear()

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Count a prompt out, and learn from what its answer states."""
        prompt, account = outcome.prompt, self._accounts.get(state)
        if prompt is None or account is None:
            return
        attempt = self._end(account, prompt)
        if attempt is None:
            return
        answer = outcome.answer
        if (outcome.status or 0) >= 400 or (attempt.is_waiting and outcome.kind is not _OK):
            refused = attempt.blocks[attempt.held :] + attempt.keys
            self.index.forget(refused, account.place)
            if self.news is not None:
                self.news.add(state, NOT_ARRIVED, refused)
            if attempt.is_waiting and outcome.kind is _OK:
                until = max(now, account.refused_until) + account.slowness * self.pace.seconds(attempt.added)
                account.refused_until = min(until, now + MOST_REFUSED_S)
        elif answer is not None:
            self._learn(account, attempt, prompt, answer)
        self._publish(account)

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        """Keep what an endpoint reports."""
        account = self.account(state, now)
        if load.kv_tokens is not None and load.kv_tokens != account.reported.kv_tokens:
            account.stated = load.kv_tokens
        account.reported, account.reported_at = load, now

    def due(self, refresh: float, now: float) -> list[EndpointState]:
        """Return the endpoints to probe next, so that each is probed every `refresh` seconds, spread evenly in time."""
        members = self._members
        size = len(members)
        self._due = min(float(size), self._due + (now - self._probed_at) / refresh * size)
        self._probed_at = now
        count = int(self._due)
        self._due -= count
        first = self._next
        self._next += count
        found = [members[(first + number) % size] for number in range(count)]
        return [state for state in found if state.is_eligible]

    # --- picks

    def look(self, prompt: Prompt, available: Sequence[EndpointState], now: float) -> list[EndpointTokens]:
        """Return the accounts of endpoints as of now, with what the prompt would add to each."""
        ratio = self._ratio(prompt.model)
        tokens, each = max(1.0, prompt.tokens * ratio), prompt.block_tokens * ratio
        found: list[EndpointTokens] = []
        for state in available:
            account = self.account(state, now)
            self.update(account, now)
            account.held = self.index.depth(prompt.blocks, account.place)
            account.cached = min(account.held * each, tokens - 1.0)
            account.added = tokens - account.cached
            account.capacity = account.place.capacity * each or self._capacity
            found.append(account)
        return found

    def account(self, state: EndpointState, now: float) -> EndpointTokens:
        """Return the account of an endpoint, which is made for the first prompt."""
        account = self._accounts.get(state)
        if account is None:
            place = self.index.place(state.id, now)
            account = self._accounts[state] = EndpointTokens(state, place)
            self._publish(account)
        return account

    def update(self, account: EndpointTokens, now: float) -> None:
        """Update an account by the time that has passed and by what others have sent there."""
        pace, state, told = self.pace, account.state, account.state.units.tokens
        if self.is_shared:
            self.index.refresh(account.place)
        slowness = account.slowness = account.place.slowness.read(pace.mean, now)
        done, of = 0.0, 0.0  # the part that is computed of the first prompt, and its tokens
        account.overdue = 0.0
        while account.unanswered:
            prompt = next(iter(account.unanswered))
            first = account.unanswered[prompt]
            began_at = max(first.sent_at, account.place.computed_at)
            takes = slowness * pace.seconds(first.added)
            passed = now - began_at
            if passed >= takes and not first.is_streamed:  # nothing shows its first token
                self._computed(account, began_at + takes)
                self._compute(account, prompt, first)
                continue
            done, of = min(1.0, passed / takes), first.added
            account.overdue = max(0.0, passed - STALLED * takes)
            break
        own = float(len(account.unanswered))
        account.waiting = account.own_waiting + told.waiting
        account.resident = account.own_resident + told.resident
        account.queue = own + told.queue
        elsewhere = state.elsewhere
        if self.is_shared:
            waiting, queue, resident = self.index.published(account.place, state.part, state.parts)
            account.waiting += waiting
            account.queue += queue
            account.resident += resident
            elsewhere = state.units.believed
        knows_others = account.queue > own
        elsewhere -= told.prompts
        if elsewhere > 0:
            self._add_like_own(account, elsewhere)
        if knows_others or (self.is_shared and account.queue > own):  # whose prompt is computed is not known
            of = account.waiting / account.queue
            done = min(1.0, (now - account.place.computed_at) / (slowness * pace.seconds(of)))
        account.wait = slowness * (
            pace.base * (account.queue - done) + pace.per_token * (account.waiting - done * of)
        ) + max(0.0, account.refused_until - now)

    def _add_like_own(self, account: EndpointTokens, requests: int) -> None:
        """Add requests of other balancers, as if they were like those of this process at all endpoints."""
        own = self._accounts.values()
        each = requests / max(1, sum([len(one.attempts) for one in own]))
        account.waiting += each * sum([one.own_waiting for one in own])
        account.queue += each * sum([len(one.unanswered) for one in own])
        account.resident += each * sum([one.own_resident for one in own])

    def _computed(self, account: EndpointTokens, now: float) -> None:
        """Record the first token of a prompt of this process."""
        account.computed_at = now
        self.index.compute(account.place, now)

    def _publish(self, account: EndpointTokens) -> None:
        self.has_changed = True
        if self.is_shared:
            queue = float(len(account.unanswered))
            place, process = account.place, account.state.part
            self.index.publish(place, process, account.own_waiting, queue, account.own_resident)

    def _compute(self, account: EndpointTokens, prompt: Prompt, attempt: Attempt) -> None:
        """Count a prompt out of those that wait."""
        attempt.is_waiting = False
        del account.unanswered[prompt]
        account.own_waiting = account.own_waiting - attempt.added if account.unanswered else 0.0

    def _end(self, account: EndpointTokens, prompt: Prompt) -> Attempt | None:
        """Count a prompt out, if it is there; return its attempt as it was."""
        attempt = account.attempts.pop(prompt, None)
        if attempt is None:
            return None
        if attempt.is_waiting:
            self._compute(account, prompt, attempt)
            attempt.is_waiting = True
        account.own_resident = account.own_resident - attempt.tokens if account.attempts else 0.0
        return attempt

    # --- what answers state

    def _ratio(self, model: str) -> float:
        """Return the tokens of a prompt of this model per estimated one."""
        sums = self._ratios.get(model)
        return sums[0] / sums[1] if sums is not None else 1.0

    def _learn(self, account: EndpointTokens, attempt: Attempt, prompt: Prompt, answer: Answer) -> None:
        """Learn tokens per byte and the capacity, and count the blocks of the answer as sent there."""
        stated, ratio = answer.prompt_tokens, self._ratio(prompt.model)
        if stated is not None and stated > 0 and prompt.tokens > 0.0:
            ratio = stated / prompt.tokens
            sums = self._ratios.get(prompt.model, (0.0, 0.0))
            if sums[1] > 0.0 or len(self._ratios) < MOST_MODELS:
                kept = (sums[0] * RATIO_KEEP + stated, sums[1] * RATIO_KEEP + prompt.tokens)
                self._ratios[prompt.model] = kept
        each = prompt.block_tokens * ratio
        self.index.advance(account.place, answer.tokens / each)
        if answer.cached_tokens is not None and self._corrects:
            cached = int(answer.cached_tokens / each + 0.5)
            self.index.assume(account.place, account.evidence.capacity(account.place, attempt, cached))
