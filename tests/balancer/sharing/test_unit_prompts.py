"""Prompts of other units: what a unit tells of its tokens and prefixes, over the wire, and what another makes of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.sharing.message import BadMessage, Message, decode, encode
from policies import registry
from policies.facts import OutcomeKind, RequestFacts
from policies.inference.index import OWN_BYTES
from policies.inference.news import MOST_BYTES
from policies.prompts import ONLY_THERE, Prefix, Prompt, PromptReport, SentTokens
from policies.routing.units import EXPIRY, LATENCIES_EVERY, OtherUnits, UnitReport
from tests.support.admin_requests import local
from tests.support.inference_routers import Driven, blocks, prompt_of
from tests.support.programs import PATIENCE, Program, Run, running, starting
from tests.support.shared_stores import RealStore, needs_server

TEXT = blocks(*map(str, range(20)))
AGE = 0.002


class Unit(Driven):
    """A unit of two endpoints, which begins to tell others of its prompts."""

    def __init__(self, name: str = "pending-tokens", seed: int = 1) -> None:
        super().__init__(name, seed=seed)
        self.units = OtherUnits(self.router)
        self.told: list[bytes] = []
        self.tell()

    def tell(self, *others: Unit) -> Message:
        """Report to others, over the wire."""
        now = self.clock.time
        self.told.append(encode(Message(1, 1, 1, 0.01, now, self.units.report(now))))
        for other in others:
            other.clock.time = now + AGE
            report = decode(self.told[-1], other.clock.time).report
            assert other.units.hear(1, report, other.clock.time, AGE)
            assert other.router.last_fault is None, other.router.last_fault
        return decode(self.told[-1], now)

    @property
    def prefixes(self) -> Any:
        report = self.tell().report.prompts
        return [] if report is None else report.prefixes


@pytest.fixture
def one() -> Unit:
    return Unit()


@pytest.fixture
def other() -> Unit:
    return Unit(seed=2)


def test_a_prefix_that_one_unit_has_sent_is_used_by_another(one: Unit, other: Unit) -> None:
    """Also by one that has sent nothing there and does not know how much an endpoint holds."""
    assert other.picks(prompt_of(TEXT, 100.0)) == {"e0", "e1"}
    one.answer(one.place(1, prompt_of(TEXT)))
    one.tell(other)
    assert other.picks(prompt_of(TEXT, 100.0)) == {"e1"}
    other.policy.accounts.look(prompt_of(TEXT), other.router.states, other.clock.time)
    assert [other.policy.accounts.account(state, 0.0).held for state in other.router.states] == [0, 20]


def test_a_prefix_is_told_once_and_not_sent_on(one: Unit, other: Unit) -> None:
    one.place(1, prompt_of(TEXT))
    one.tell(other)
    assert other.prefixes == one.prefixes == []


def test_tokens_that_wait_at_another_unit_count_until_the_first_token(one: Unit, other: Unit) -> None:
    """And as resident until the end."""
    assignment = one.place(0, Prompt(8000.0, is_streamed=True))
    one.tell(other)
    account = other.account(0)
    assert (account.waiting, account.queue, account.resident) == (8000.0, 1.0, 8000.0)
    assert account.wait == pytest.approx(1.0 - AGE)  # at 8,000 tokens per second
    assert other.account(1).waiting == 0.0
    one.router.first_token(assignment, one.clock.time)
    one.tell(other)
    account = other.account(0)
    assert (account.waiting, account.queue, account.wait, account.resident) == (0.0, 0.0, 0.0, 8000.0)
    one.answer(assignment)
    one.tell(other)
    assert other.account(0).resident == 0.0


def test_tokens_are_those_of_all_units(one: Unit, other: Unit) -> None:
    for number, tokens in ((7, 1000.0), (8, 2000.0)):
        unit = Unit()
        unit.place(0, Prompt(tokens, is_streamed=True))
        other.units.hear(number, unit.tell().report, other.clock.time, 0.0)
    other.place(0, Prompt(500.0, is_streamed=True))
    assert (other.account(0).waiting, other.account(0).queue) == (3500.0, 3.0)


def test_requests_of_units_that_tell_no_tokens_count_like_own_ones(one: Unit, other: Unit) -> None:
    one.place(0, Prompt(8000.0, is_streamed=True))
    other.place(1, Prompt(3000.0, is_streamed=True))
    other.units.hear(1, one.units.report(one.clock.time)._replace(prompts=None), other.clock.time, 0.0)
    assert (other.account(0).waiting, other.account(0).queue) == (3000.0, 1.0)


def silent(one: Unit, other: Unit) -> None:
    other.units.sweep(other.clock.time + EXPIRY + 0.1)


def lost(one: Unit, other: Unit) -> None:
    other.units.forget()


def reads_prompts_no_more(one: Unit, other: Unit) -> None:
    one.router.set_policy(registry.make("round-robin", {}, Random(1)))
    one.clock.time += LATENCIES_EVERY
    one.tell(other)


@pytest.mark.parametrize("ends", [silent, lost, reads_prompts_no_more])
def test_tokens_of_a_unit_end_with_its_reports(
    one: Unit, other: Unit, ends: Callable[[Unit, Unit], None]
) -> None:
    one.place(0, Prompt(8000.0, is_streamed=True))
    one.tell(other)
    ends(one, other)
    assert other.router.states[0].units.tokens == SentTokens()


def test_a_prompt_that_was_refused_is_not_held(one: Unit, other: Unit) -> None:
    """What it has in common with one that came there stays."""
    one.answer(one.place(0, prompt_of(TEXT[:8])))
    refused = one.place(0, prompt_of(TEXT))
    one.tell(other)
    one.end(refused, OutcomeKind.ERROR_STATUS)
    one.tell(other)
    other.policy.accounts.look(prompt_of(TEXT), other.router.states, other.clock.time)
    assert other.policy.accounts.account(other.router.states[0], 0.0).held == 8


def test_a_session_is_where_another_unit_has_sent_it_last() -> None:
    one, other = Unit("cache-aware"), Unit("cache-aware")
    for number in (0, 1):
        one.answer(one.place(number, Prompt(100.0, session="s", is_streamed=True)))
        one.tell(other)
        assert other.picks(Prompt(100.0, session="s")) == {f"e{number}"}


@pytest.mark.parametrize("distance", [0.0, 0.003, 0.2])
def test_pace_is_not_learned_from_a_step_with_a_first_token_of_another_unit(
    one: Unit, other: Unit, distance: float
) -> None:
    """The same instant, or one a little later; a later step is another one."""
    before = other.policy.accounts.pace.base
    sent = [unit.place(0, Prompt(4000.0, is_streamed=True)) for unit in (one, other)]
    one.tell(other)
    other.clock.time += 1.0
    other.router.first_token(sent[1], other.clock.time)
    one.clock.time = other.clock.time + distance
    one.router.first_token(sent[0], one.clock.time)
    one.tell(other)
    other.clock.time += LATENCIES_EVERY
    other.tell()
    assert (other.policy.accounts.pace.base == before) == (distance < 0.1)


def test_the_oldest_prefixes_are_dropped_beyond_their_bytes(one: Unit) -> None:
    for number in range(300):
        one.answer(one.place(0, prompt_of([number * 100 + at for at in range(20)])))
    report = one.tell().report.prompts
    assert report is not None
    assert [prefix.blocks[0] // 100 for prefix in report.prefixes] == list(range(300 - 186, 300))
    one.place(0, prompt_of(list(range(10_000))))
    [prefix] = one.prefixes
    assert len(one.told[-1]) < MOST_BYTES + 300
    assert list(prefix.blocks) == list(range((MOST_BYTES - 16) // 8))


def test_of_processes_that_share_an_index_one_applies_a_prefix(one: Unit) -> None:
    """The first one, and all use it."""
    memory, processes = memoryview(bytearray(OWN_BYTES)), [Unit(seed=seed) for seed in (2, 3)]
    for number, process in enumerate(processes):
        process.policy.accounts.share(memory)
        for state in process.router.states:
            state.set_process(number, 2)
    one.answer(one.place(1, prompt_of(TEXT)))
    report = one.tell().report
    for process, picked in ((processes[1], {"e0", "e1"}), (processes[0], {"e1"})):
        process.units.hear(1, report, process.clock.time, AGE)
        assert [each.picks(prompt_of(TEXT, 100.0)) for each in processes] == [picked] * 2


def test_a_cluster_that_reads_no_prompts_reports_as_before() -> None:
    """The same bytes as of units that know no prompts."""
    unit = Driven("pending-tokens")
    unit.router.set_policy(registry.make("round-robin", {}, Random(1)))
    unit.router.route(RequestFacts())
    report = OtherUnits(unit.router).report(unit.clock.time)
    assert report.prompts is None
    assert encode(Message(1, 1, 1, 0.01, 0.0, report))[:1] == b"\x01"


def message(tokens: tuple[Any, ...] = (1, 1, 1, 1, 9.0, 0.5), *prefixes: Prefix) -> bytes:
    told = PromptReport({7: SentTokens(*tokens)}, prefixes or [Prefix(7, 0, [1, 2**64 - 1])])
    return encode(Message(1, 2, 3, 0.04, 100.0, UnitReport({7: 1}, {}, told)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message()[:-1], "it has an impossible prefix"),
        (message() + b"\0", "its length is wrong"),
        (message((1, 1, 1, 1, float("nan"), 0.5)), "it has an impossible number of tokens"),
        (message((1, 1, 1, 1, 9.0, 0.5))[:60], "its length is wrong"),
        (message((1, 1, 1, 1, 9.0, 0.5), Prefix(7, ONLY_THERE + 1, [1])), "it has an impossible prefix"),
        (message((1, 1, 1, 1, 9.0, 0.5), Prefix(7, 0, [])), "it has an impossible prefix"),
        (message((1, 1, 1, 1, 9.0, 0.5), *[Prefix(7, 0, [1] * 3000)] * 2), "it has tokens of more than 4096"),
        (b"\x03" + message()[1:], r"its version is 3\.1, not 1\.1 or 2\.1"),
    ],
)
def test_bad_prompts_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        decode(data, 0.0)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_damaged_prompts_are_refused_or_harmless(at: int, damage: bytes) -> None:
    data = bytearray(message())
    data[at % len(data) : at % len(data) + len(damage)] = damage
    try:
        found = decode(bytes(data), 1000.0)
    except BadMessage:
        return
    unit = Unit()
    [key] = [key for key, state in unit.units._members().items() if state.id == "e0"]
    prompts = found.report.prompts
    if prompts is None:
        return
    for sent in prompts.tokens.values():
        prefixes = [prefix._replace(endpoint=key) for prefix in prompts.prefixes]
        told = PromptReport({key: sent}, prefixes)
        unit.units.hear(1, UnitReport({}, None, told), unit.clock.time, 0.0)
        assert unit.router.last_fault is None
        assert unit.account(0).wait >= 0.0


# --- programs


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RealStore]:
    made = RealStore(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def engine(run: Run, name: str) -> str:
    """Start an emulated engine; return its address."""
    process = await run("inference", "--name", name, "--port", "0", "--tokens", "2")
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        line = (await process.stdout.readline()).decode()
    found = re.search(r"http://[\d.]+:\d+", line)
    assert found, line
    return found[0]


async def asked(program: Program, text: str) -> tuple[bytes | None, int]:
    """Ask for a chat; return the name of the engine and the tokens that it had cached."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    client = await program.client()
    answer = await client.ask(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    await client.close()
    assert answer.status == 200
    return answer.value(b"X-Worker-Name"), json.loads(answer.body)["usage"]["prompt_tokens_details"][
        "cached_tokens"
    ]


async def heard(program: Program, more: int) -> None:
    """Wait for so many further reports of the other unit: each that is made later has what was sent before."""
    before = (await program.status())["shared"]["heard"]
    async with asyncio.timeout(PATIENCE):
        while (await program.status())["shared"]["heard"] < before + more:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def set_state(program: Program, number: int, state: str) -> None:
    body, json_type = b'{"state": "%b"}' % state.encode(), b"Content-Type: application/json"
    found = await program.ask(local(b"/-/endpoints/r-%d" % number, json_type, method=b"PATCH", body=body))
    assert found["state"] == state, found


@pytest.mark.peer
@pytest.mark.second_tier
@pytest.mark.timeout(120)
@needs_server
async def test_a_prefix_that_one_program_learned_is_used_by_the_other(store: RealStore) -> None:
    """A balancer that has one engine alone sends a prompt there; the other one, which has both, its continuation. The
    engine alternates, so that no preference of the other balancer gives the same."""
    url = f"redis://127.0.0.1:{store.port}"
    async with running("workers") as run, starting("--port", "0") as start:
        engines = [word for name in ("e0", "e1") for word in ("--worker", f"r={await engine(run, name)}")]
        one, other = [
            await start(*engines, BALANCER_KIND="inference", BALANCER_SHARED__URL=url) for _ in range(2)
        ]
        await heard(one, 1)
        for number in range(6):
            has, lacks = number % 2, 1 - number % 2
            text = f"{number} " * 4000
            await set_state(one, has, "ready")
            await set_state(one, lacks, "drain")
            assert await asked(one, text) == (b"e%d" % has, 0)
            await heard(other, 2)
            engine_of_other, cached = await asked(other, text + "and so on " * 100)
            assert engine_of_other == b"e%d" % has
            assert cached >= 1900
