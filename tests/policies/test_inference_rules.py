"""Rules for inference servers: their formulas by hand, ties, failures, and what becomes of a prefix that all share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from policies.facts import OutcomeKind, RequestFacts
from policies.inference.first_token import PARTS
from policies.prompts import Prompt
from tests.support.inference_routers import BLOCK, Driven, blocks, prompt_of
from tests.support.steelyard_routers import Connections
from tests.support.traces import last

RULES = ("pending-tokens", "llm-d", "lmetric", "cache-aware", "dynamo", "prefix-chunks")
TEXT = blocks(*"abcdefgh")


def loaded(name: str, **options: Any) -> Driven:
    """Three endpoints. At "e0" an answer to 6 of the 8 blocks is written and 2,000 tokens wait; at "e2" 500 wait.

    The one prompt that was computed took as long as is assumed at first, at 8,000 tokens per second.
    """
    driven = Driven(name, 3, **options)
    one = driven.place(0, prompt_of(TEXT[:6]))
    driven.clock.time += 768 / 8000
    driven.router.first_token(one, driven.clock.time)
    driven.place(0, Prompt(2000.0, is_streamed=True))
    driven.place(2, Prompt(500.0, is_streamed=True))
    return driven


@pytest.mark.parametrize(
    ("name", "options", "scores", "reason"),
    [
        # wait + prefill, 3 % of that for a mean of one request, 5 % for each more or less, a fifth less if idle
        (
            "pending-tokens",
            {},
            [0.25 + 0.032 * 1.13, 0.128 * (1.03 - 0.1 - 0.2), 0.0625 + 0.128 * 1.03],
            "soonest-first-token",
        ),
        ("lmetric", {}, [(2000 + 256) * 3, 1024, (500 + 1024) * 2], "least-product"),
        # −(3 · cached share + 2 · (most − queue) / spread + 2 · free)
        ("llm-d", {"capacity": 1e4}, [-2.25 - 2 * 0.7232, -2 - 2, -2 * 0.95], "highest-sum"),
        (
            "llm-d",
            {"capacity": 1e4, "prefix": 0.0, "queue": 1.0},
            [-2 * 0.7232, -3, -2 * 0.95],
            "highest-sum",
        ),
        # blocks to compute less cached ones, and all in the cache
        ("dynamo", {}, [(2000 + 256 + 2768 + 1024) / BLOCK, 16, 2 * 1524 / BLOCK], "least-blocks"),
        (
            "dynamo",
            {"overlap_score_credit": 0.5, "prefill_load_scale": 2.0, "decode_active_request_weight": 3.0},
            [(2 * (2000 + 640) + 2768 + 1024) / BLOCK + 6, 24, 3 * 1524 / BLOCK + 3],
            "least-blocks",
        ),
        ("cache-aware", {}, [0.25, 1, 1], "longest-prefix"),
        ("cache-aware", {"cache_threshold": 0.75}, [2, 0, 1], "fewest-requests"),
        ("cache-aware", {"balance_abs_threshold": 1.0}, [2, 0, 1], "unbalanced-fewest-requests"),
        ("cache-aware", {"balance_abs_threshold": 2.0}, [0.25, 1, 1], "longest-prefix"),
        ("prefix-chunks", {}, [2, 8, 8], "longest-match"),
        ("prefix-chunks", {"prefix_min_match_length": 6 * 512.0}, [2, 8, 8], "longest-match"),
        ("prefix-chunks", {"prefix_min_match_length": 6 * 512.0 + 1}, [2, 0, 1], "lowest-rate"),
    ],
)
def test_scores_are_those_of_the_source(
    name: str, options: dict[str, Any], scores: list[float], reason: str
) -> None:
    """And the least wins."""
    driven, prompt = loaded(name, **options), prompt_of(TEXT)
    assert driven.scores(prompt) == pytest.approx(scores)
    assert last(driven.trace).reasons == (reason,)
    assert driven.picks(prompt) == {f"e{scores.index(min(scores))}"}


def test_session_goes_where_its_last_request_went() -> None:
    """Whatever is cached elsewhere, but not while loads are unbalanced, and not for another model."""
    driven = loaded("cache-aware")
    mine: dict[str, Any] = {"session": "s-1", "model": "m"}
    driven.end(driven.place(1, Prompt(100.0, **mine)))
    assert driven.picks(prompt_of(TEXT, **mine)) == {"e1"}
    assert driven.trace.counts["its-session"] == 40
    others: list[dict[str, Any]] = [{"session": "s-12", "model": "m"}, {"session": "s-1", "model": "n"}, {}]
    for other in others:
        assert driven.picks(prompt_of(TEXT, **other)) == {"e0"}
    driven.end(driven.place(2, Prompt(100.0, **mine)))
    assert driven.picks(prompt_of(TEXT, **mine)) == {"e2"}
    for _ in range(66):
        driven.place(2, Prompt(100.0))
    assert driven.picks(prompt_of(TEXT, **mine)) == {"e1"}
    tried = RequestFacts(prompt=prompt_of(TEXT, **mine), tried=frozenset({"e1"}))
    assert driven.router.route(tried).state.id == "e0"


def test_rate_of_a_minute_is_low_where_few_requests_take_long() -> None:
    """Ten long requests of an hour ago still run at "e0", one short one of this minute has ended at "e1"."""
    driven = Driven("prefix-chunks", prefix_min_match_length=10_000.0)
    for _ in range(10):
        driven.place(0, Prompt(9000.0))
    driven.clock.time += 60.0
    driven.answer(driven.place(1, Prompt(10.0)))
    assert driven.picks(prompt_of(TEXT)) == {"e0"}


@pytest.mark.parametrize(
    ("after", "wait", "overdue"),
    [(0.0, 0.25, 0.0), (0.1, 0.15, 0.0), (0.25, 0.0, 0.0), (0.75, 0.0, 0.0), (1.0, 0.0, 0.25)],
)
def test_what_is_computed_waits_no_more_and_is_overdue_in_the_end(
    after: float, wait: float, overdue: float
) -> None:
    """2,000 tokens at 8,000 per second; three times as long as that is too long."""
    driven = loaded("pending-tokens")
    driven.clock.time += after
    account = driven.account(0)
    assert (account.wait, account.overdue) == pytest.approx((wait, overdue))


def test_parts_of_seconds_are_named_and_add_up() -> None:
    driven = loaded("pending-tokens")
    for state in driven.router.states:
        state.connections = Connections(has_idle=True, round_trip=0.3 + 0.1 * state.order)
    driven.pick(prompt_of(TEXT))
    driven.router.tick()
    driven.end(driven.place(2, Prompt(1.0)), OutcomeKind.RESET)
    driven.clock.time += 0.9
    driven.pick(prompt_of(TEXT))
    [step] = last(driven.trace).steps
    assert [sum(parts.values()) for parts in step.parts] == pytest.approx(step.scores)
    away, failing = step.parts[1], step.parts[2]
    assert (away["distance"], away["failure"]) == (0.3, 0.0)
    assert failing["failure"] == pytest.approx(5.0)
    assert {name for parts in step.parts for name, part in parts.items() if part} == set(PARTS) - {"wait"}


@pytest.mark.parametrize("name", RULES)
def test_equal_endpoints_get_prompts_at_random(name: str) -> None:
    driven = Driven(name, 5)
    for number, state in enumerate(driven.router.states):  # as handshakes in one network differ
        state.connections = Connections(has_idle=True, round_trip=0.0002 + 0.00001 * number)
    assert driven.picks(prompt_of(TEXT), 100) == {f"e{number}" for number in range(5)}


def test_a_slow_handshake_does_not_starve_an_endpoint() -> None:
    """Where nothing waits, another one would get all prompts, for ever. Distances are those of regions."""
    driven = Driven("pending-tokens", 4)
    for state, trip in zip(driven.router.states, (0.0107, 0.0065, 0.0005, 0.0), strict=True):
        state.connections = Connections(has_idle=True, round_trip=trip)
    driven.picks(prompt_of([], 525.0))
    driven.router.tick()
    assert driven.picks(prompt_of([], 525.0), 100) == {"e0", "e1", "e2", "e3"}
    driven.router.put(replace(driven.router.states[0].endpoint, region="away"))
    driven.router.tick()
    assert driven.picks(prompt_of([], 525.0), 100) == {"e1", "e2", "e3"}


@pytest.mark.parametrize("name", RULES)
def test_request_without_a_prompt_goes_to_the_less_loaded(name: str) -> None:
    driven = loaded(name)
    driven.trace.counts.clear()
    picked = {driven.router.active.pick(RequestFacts(), driven.router.available, 0.0).id for _ in range(100)}
    assert "e0" not in picked
    assert set(driven.trace.counts) <= {"less-loaded", "tie"}


@pytest.mark.parametrize("name", RULES)
def test_endpoint_that_fails_at_once_gets_no_prompts(name: str) -> None:
    """Nothing waits there, and what is sent there is gone in an instant."""
    driven = Driven(name, 3)
    driven.answer(driven.place(0, prompt_of(TEXT)))
    for _ in range(20):
        driven.end(driven.place(0, Prompt(10.0)), OutcomeKind.REFUSED)
    picked = Counter(driven.pick(prompt_of(TEXT, 10.0)).id for _ in range(200))
    assert picked["e0"] < 20
    assert driven.place(0, prompt_of(TEXT)).state.id == "e0"  # if there is no other


@pytest.mark.parametrize(
    ("name", "used", "least", "most"),
    [
        ("pending-tokens", 4, 20, 20),
        ("lmetric", 4, 20, 20),
        ("dynamo", 4, 20, 20),
        ("llm-d", 2, 40, 40),
        ("cache-aware", 4, 1, 70),
        ("prefix-chunks", 1, 80, 80),
    ],
)
def test_one_prefix_that_all_share(name: str, used: int, least: int, most: int) -> None:
    """Of 80 requests at once, each with two blocks behind a system prompt of forty, each of four endpoints gets 20.

    production-stack's rule sends all to one; vllm-router's until that has 65 more than another. llm-d's leaves two
    idle: the cached prefix is worth 3, the queue at most 2, and the KV caches are nearly empty.
    """
    driven, system = Driven(name, 4), blocks(*"s" * 40)
    picked = Counter[str]()
    for number in range(80):
        prompt = prompt_of(system + blocks(str(number), "end"), 50.0)
        picked[driven.router.route(RequestFacts(prompt=prompt)).state.id] += 1
        driven.clock.time += 0.01
    assert len(picked) == used
    assert least <= min(picked.values()) <= max(picked.values()) <= most
    assert driven.router.fallback_picks == 0


def test_a_slow_start_counts_as_slowness() -> None:
    driven = Driven("pending-tokens")
    driven.router.states[1].apply_slow_start(0.25, 100.0)
    assert driven.scores(Prompt(800.0)) == pytest.approx([0.08, 0.32])
