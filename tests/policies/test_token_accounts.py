"""Accounts of tokens: what is counted in is counted out, whatever happens, and what is learned from answers."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Endpoint
from policies.facts import OutcomeKind, ReportedLoad, RequestFacts
from policies.inference.cache_aware import hash_of_session
from policies.inference.index import ENTRIES_AT, WORD
from policies.inference.pace import Pace, Slowness
from policies.inference.tokens import MOST_MODELS
from policies.prompts import Prompt
from policies.routing.assignment import Assignment
from tests.support.example_counts import examples
from tests.support.inference_routers import BLOCK, Driven, blocks, prompt_of

TEXTS = [blocks(*"system question"[: 6 + number]) for number in range(8)]

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "retried", "first", "ends", "ends", "leaves", "moves", "time", "tick"]),
        st.integers(0, 50),
        st.sampled_from([OutcomeKind.OK, OutcomeKind.RESET, OutcomeKind.BUSY, OutcomeKind.ABANDONED]),
        st.booleans(),
    ),
    max_size=60,
)


class Shared:
    """Two processes in one memory, of which one is driven."""

    def __init__(self) -> None:
        memory = memoryview(bytearray((ENTRIES_AT + 4096) * WORD))
        self.driven, self.other = Driven("pending-tokens", 3), Driven("pending-tokens", 3)
        for number, process in enumerate((self.driven, self.other)):
            process.policy.share_prompts(memory)
            for state in process.router.states:
                state.set_process(number, 2)


def apply(driven: Driven, going: list[Assignment], event: tuple[str, int, OutcomeKind, bool]) -> None:
    what, number, kind, is_streamed = event
    states = driven.router.states
    if what == "sent":
        prompt = prompt_of(TEXTS[number % 8], float(number), is_streamed=is_streamed, model=str(number % 2))
        going.append(driven.router.route(RequestFacts(prompt=prompt)))
    elif what == "time":
        driven.clock.time += number * 0.05
    elif what == "tick":
        driven.router.tick()
    elif what == "leaves" and len(states) > 1:
        driven.router.drop(states[number % len(states)].id)
    elif what == "moves":
        state = states[number % len(states)]
        driven.router.replace(
            [*(one.endpoint for one in states if one is not state), elsewhere(state.endpoint)]
        )
    elif going:
        one = going[number % len(going)]
        if what == "retried":  # also while the first attempt goes on, as hedging does
            going.append(
                driven.router.route(RequestFacts(prompt=one.facts.prompt, tried=frozenset({one.state.id})))
            )
        elif what == "first":
            driven.router.first_token(one, driven.clock.time)
        elif what == "ends":
            driven.end(going.pop(number % len(going)), kind)


def elsewhere(endpoint: Endpoint) -> Endpoint:
    return Endpoint(endpoint.id, endpoint.address + "0", endpoint.region)


def check_sums(driven: Driven, going: list[Assignment]) -> None:
    """Sums are those of the open attempts, none is negative."""
    each = driven.policy.accounts._accounts.values()
    for account in each:
        attempts, waiting = account.attempts.values(), account.unanswered.values()
        assert account.own_resident == pytest.approx(sum(one.tokens for one in attempts), abs=1e-6)
        assert account.own_waiting == pytest.approx(sum(one.added for one in waiting), abs=1e-6)
        assert account.own_waiting >= 0.0 <= account.own_resident
        assert all(1.0 <= one.added <= one.tokens and one.is_waiting for one in waiting)
        assert set(waiting) <= set(attempts)
    assert sum(len(account.attempts) for account in each) <= len(going)


@examples(150)
@given(EVENTS)
def test_all_tokens_are_given_back(events: list[tuple[str, int, OutcomeKind, bool]]) -> None:
    """After any history: lost first tokens, retries, endpoints that leave or move. Other processes see it, too."""
    shared = Shared()
    driven, going = shared.driven, list[Assignment]()
    for event in events:
        apply(driven, going, event)
        check_sums(driven, going)
        assert driven.router.last_fault is None
    for one in going:
        driven.end(one, OutcomeKind.ABANDONED)
    check_sums(driven, [])
    for number in range(3):
        seen = shared.other.account(number)
        assert (seen.waiting, seen.queue, seen.resident) == (0.0, 0.0, 0.0)


def test_a_prompt_waits_until_its_first_token_and_is_resident_until_its_end() -> None:
    driven, hashes = Driven("pending-tokens"), blocks(*"abcdefghij")
    first, second = prompt_of(hashes[:8], 20.0), prompt_of(hashes, 30.0)
    one = driven.place(0, first)
    other = driven.place(0, second)
    assert (first.cached, first.added) == (0.0, 8 * BLOCK + 20)
    assert (second.cached, second.added) == (8 * BLOCK, 2 * BLOCK + 30)
    account = driven.account(0)
    assert (account.waiting, account.queue) == (first.added + second.added, 2)
    assert account.resident == first.tokens + second.tokens
    driven.router.first_token(one, driven.clock.time)
    driven.router.first_token(one, driven.clock.time)
    account = driven.account(0)
    assert (account.waiting, account.queue, account.resident) == (
        second.added,
        1,
        first.tokens + second.tokens,
    )
    driven.answer(one)
    driven.answer(other)
    account = driven.account(0)
    assert (account.waiting, account.queue, account.resident) == (0, 0, 0)


REFUSALS = [(OutcomeKind.BUSY, None), (OutcomeKind.REFUSED, None), (OutcomeKind.OK, 404)]


@pytest.mark.parametrize(("kind", "status"), REFUSALS)
@pytest.mark.parametrize("name", ["pending-tokens", "prefix-chunks", "cache-aware"])
def test_a_failed_prompt_leaves_no_blocks_behind(name: str, kind: OutcomeKind, status: int | None) -> None:
    """What was cached before stays; what an engine refused did not get there, nor has it the session."""
    driven, hashes = Driven(name), blocks(*"abcdefgh")
    driven.answer(driven.place(0, prompt_of(hashes[:3])))
    for refused, left in ((True, 3), (False, 8)):
        placed = driven.place(0, prompt_of(hashes, session="s"))
        driven.end(placed, *((kind, None, status) if refused else ()))
        driven.policy.accounts.look(prompt_of(hashes), driven.router.states, driven.clock.time)
        account = driven.policy.accounts._accounts[driven.router.states[0]]
        assert account.held == left
        if name == "cache-aware":
            key = hash_of_session(prompt_of(hashes, session="s"))
            assert driven.policy.accounts.index.depth([key], account.place) == (not refused)


def test_an_engine_that_refuses_at_once_gets_no_more_prompts_than_others() -> None:
    """Of a closed loop of eight. It is always idle, but a prompt that it answered with 404 counts as if it waited."""
    driven = Driven("pending-tokens")
    refusing, clock = driven.router.states[0], driven.clock
    going: list[tuple[float, Assignment]] = []
    refused = served = 0
    free_at = 0.0
    while served < 200:
        while len(going) < 8 and refused < 1000:
            one = driven.router.route(RequestFacts(prompt=Prompt(4000.0)))
            if one.state is refusing:
                clock.time += 0.001
                driven.end(one, OutcomeKind.OK, None, 404)
                refused += 1
            else:
                free_at = max(free_at, clock.time) + 0.5
                going.append((free_at, one))
        answered_at, one = going.pop(0)
        clock.time = max(clock.time, answered_at)
        driven.router.first_token(one, clock.time)
        driven.answer(one)
        served += 1
    assert 0.8 * served < refused < 1.2 * served


def test_answers_in_one_piece_leave_the_queue_when_they_should_be_computed() -> None:
    """No first token shows it: 8,000 tokens per second are assumed, of one prompt after the other."""
    driven = Driven("pending-tokens")
    for _ in range(3):
        driven.place(0, Prompt(4000.0))
    queues = []
    for _ in range(4):
        queues.append(driven.account(0).queue)
        driven.clock.time += 0.5001
    assert queues == [3, 2, 1, 0]
    assert driven.account(0).resident == 12_000


def test_tokens_per_byte_are_learned_per_model_and_of_a_bounded_number() -> None:
    driven = Driven("pending-tokens")
    for _ in range(5):
        driven.answer(driven.place(0, Prompt(1000.0, model="dense")), prompt_tokens=1500)
    driven.answer(driven.place(0, Prompt(1000.0, model="empty")), prompt_tokens=0)
    for model, expected in (("dense", 3000.0), ("empty", 2000.0), ("other", 2000.0)):
        prompt = Prompt(2000.0, model=model)
        driven.end(driven.place(1, prompt))
        assert prompt.added == pytest.approx(expected)
    for number in range(2 * MOST_MODELS):
        driven.answer(driven.place(0, Prompt(1000.0, model=str(number))), prompt_tokens=1500)
    assert len(driven.policy.accounts._ratios) == MOST_MODELS


def test_reported_capacity_replaces_the_assumed_one() -> None:
    driven = Driven("pending-tokens", capacity=100_000.0)
    driven.end(driven.place(0, prompt_of(blocks("a"))))
    assert driven.account(0).place.capacity * BLOCK == 100_000
    driven.router.probed(driven.router.states[0], ReportedLoad(kv_tokens=32_000), 0.001, driven.clock.time)
    driven.end(driven.place(0, prompt_of(blocks("a"))))
    assert driven.account(0).place.capacity * BLOCK == 32_000


def test_pace_is_measured_between_first_tokens() -> None:
    """Prompts in a queue take 0.1 s and 0.2 ms per token each, however long they wait."""
    driven, rng = Driven("pending-tokens"), Random(1)
    going = []
    for _ in range(200):
        going.append((driven.place(0, Prompt(size := rng.uniform(500, 5000), is_streamed=True)), size))
        if len(going) == 4 or rng.random() < 0.3:
            for one, size in going:
                driven.clock.time += 0.1 + 0.0002 * size
                driven.answer(one)
            going.clear()
            driven.clock.time += rng.random()
    pace, slowness = driven.policy.accounts.pace, driven.account(0).slowness
    assert slowness * pace.base == pytest.approx(0.1, rel=0.03)
    assert slowness * pace.per_token == pytest.approx(0.0002, rel=0.03)


@pytest.mark.parametrize(
    "samples", [[(0.0, 0.0)] * 50, [(1000.0, 0.0)] * 50, [(1.0, 5.0), (9000.0, 0.0)] * 30]
)
def test_pace_is_positive_and_finite(samples: list[tuple[float, float]]) -> None:
    pace = Pace()
    for tokens, seconds in samples:
        pace.learn(tokens, seconds)
        assert 0.0 <= pace.base < inf
        assert 0.0 < pace.per_token < inf
        assert 0.0 < pace.mean < inf


def test_slowness_is_found_beyond_chance_and_fades() -> None:
    rng = Random(1)

    def after(factor: float, now: float) -> float:
        slowness = Slowness(memoryview(bytearray(32)).cast("d"), 0)
        for number in range(60):
            slowness.learn(factor * rng.uniform(0.5, 1.5), 1.0, number * 0.5)
        return slowness.read(1.0, now)

    assert [after(1.0, 30.0) for _ in range(20)].count(1.0) >= 17
    assert after(2.0, 30.0) == pytest.approx(2.0, abs=0.2)
    assert after(0.5, 30.0) == pytest.approx(0.5, abs=0.1)
    assert 1.0 <= after(2.0, 150.0) < 1.3


def test_processes_add_up_what_waits() -> None:
    shared = Shared()
    prompt = Prompt(4000.0, is_streamed=True)
    one = shared.other.place(1, prompt)
    seen = shared.driven.account(1)
    assert (seen.waiting, seen.queue, seen.resident) == (4000, 1, 4000)
    assert seen.wait == pytest.approx(0.5)
    shared.driven.clock.time += 0.25
    shared.other.answer(one)
    assert shared.driven.account(1).wait == 0.0


def test_requests_of_other_balancers_count_like_the_own_ones() -> None:
    """Of two own requests one waits, with 3,000 tokens; of four others then two do, with 6,000."""
    driven = Driven("pending-tokens")
    driven.router.first_token(driven.place(0, Prompt(1000.0, is_streamed=True)), driven.clock.time)
    driven.place(0, Prompt(3000.0, is_streamed=True))
    driven.router.states[1].update_units(4, driven.clock.time, 0.0)
    account = driven.account(1)
    assert (account.waiting, account.queue, account.resident) == (6000, 2, 8000)
