"""Several addresses at once, in virtual time: who begins when, who wins, and what becomes of the others."""

from __future__ import annotations

import asyncio

import pytest

from balancer.upstream.happy_eyeballs import Tried, first_of, interleaved
from tests.balancer.virtual import VirtualLoop

SIX, SIX_TOO, FOUR, FOUR_TOO = "2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"
REFUSED = ConnectionRefusedError(111, "Connection refused")
NO_ROUTE = OSError(101, "Network is unreachable")


def settle(waiter: asyncio.Future[None]) -> None:
    """Its time has come, if it is still awaited."""
    if not waiter.done():
        waiter.set_result(None)


class HedgeRace:
    """`plan` says for each address after how many seconds it stands or fails; one that is absent never answers."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(lambda *_: asyncio.Future(), at=0.0)
        self.plan: dict[str, tuple[float, OSError | None]] = {}
        self.began: list[tuple[str, float]] = []
        self.open: set[str] = set()
        self.tried = Tried()

    async def begin(self, address: str) -> str:
        self.began.append((address, self.loop.now()))
        delay, error = self.plan.get(address, (1e9, None))
        waiter = self.loop.create_future()
        self.loop.call_later(delay, settle, waiter)
        await waiter
        if error is not None:
            raise error
        self.open.add(address)
        return address

    def start(self, *addresses: str) -> asyncio.Task[tuple[str, str]]:
        with self.loop:
            return self.loop.create_task(first_of(addresses, self.begin, self.open.discard, self.tried))

    def run(self, *addresses: str) -> tuple[str, float]:
        """Who wins, and when."""
        task = self.start(*addresses)
        ended: list[float] = []
        task.add_done_callback(lambda _: ended.append(self.loop.now()))
        with self.loop:
            self.loop.advance(100.0)
        return task.result()[0], round(ended[0], 6)


def test_families_take_turns() -> None:
    """Beginning with that of the first; whoever has answered before goes first."""
    assert interleaved([SIX, SIX_TOO, FOUR, FOUR_TOO]) == [SIX, FOUR, SIX_TOO, FOUR_TOO]
    assert interleaved([FOUR, FOUR_TOO, SIX]) == [FOUR, SIX, FOUR_TOO]
    assert interleaved([SIX, SIX_TOO, FOUR], FOUR) == [FOUR, SIX, SIX_TOO]
    assert interleaved([FOUR], SIX) == [FOUR]
    assert interleaved([]) == []


def test_a_first_that_answers_in_time_is_alone() -> None:
    """Within 250 ms nobody else is asked."""
    race = HedgeRace()
    race.plan = {SIX: (0.2, None)}
    assert race.run(SIX, FOUR) == (SIX, 0.2)
    assert race.began == [(SIX, 0.0)]


def test_a_first_that_is_silent_costs_a_quarter_of_a_second() -> None:
    """The next begins beside it, and the one that loses is given up."""
    race = HedgeRace()
    race.plan = {FOUR: (0.04, None)}
    assert race.run(SIX, FOUR, SIX_TOO) == (FOUR, 0.29)
    assert race.began == [(SIX, 0.0), (FOUR, 0.25)]
    assert race.open == {FOUR}


def test_a_first_that_fails_costs_nothing() -> None:
    """Who has no IPv6 does not wait for it."""
    race = HedgeRace()
    race.plan = {SIX: (0.0, NO_ROUTE), FOUR: (0.04, None)}
    assert race.run(SIX, FOUR) == (FOUR, 0.04)
    assert str(race.tried) == f"{SIX}: Network is unreachable; {FOUR}: no answer"


def test_the_first_may_still_win() -> None:
    """It was slow, and the second is slower."""
    race = HedgeRace()
    race.plan = {SIX: (0.3, None), FOUR: (0.1, None)}
    assert race.run(SIX, FOUR) == (SIX, 0.3)
    assert race.open == {SIX}


def test_two_at_the_same_instant() -> None:
    """One wins, the other is closed."""
    race = HedgeRace()
    race.plan = {SIX: (0.5, None), FOUR: (0.25, None)}
    race.run(SIX, FOUR)
    assert len(race.open) == 1


def test_nobody_answers_well() -> None:
    """Told of each; the refusal says most, for who refuses is there."""
    race = HedgeRace()
    race.plan = {SIX: (0.0, NO_ROUTE), FOUR: (0.01, REFUSED), SIX_TOO: (0.0, NO_ROUTE)}
    with pytest.raises(ConnectionRefusedError):
        race.run(SIX, FOUR, SIX_TOO)
    assert str(race.tried) == (
        f"{SIX}: Network is unreachable; {FOUR}: Connection refused; {SIX_TOO}: Network is unreachable"
    )


@pytest.mark.parametrize("after", [0.0, 0.1, 0.25, 0.26, 0.3, 0.31])
def test_who_gives_up_leaves_nothing_open(after: float) -> None:
    """Cancelled at any time: before the first, between attempts, and when one has just come to stand."""
    race = HedgeRace()
    race.plan = {SIX: (0.3, None), FOUR: (0.06, None)}
    task = race.start(SIX, FOUR)
    with race.loop:
        if after:
            race.loop.advance(after)
        task.cancel()
        race.loop.advance(10.0)
    assert task.cancelled() or race.open == {task.result()[0]}
    assert task.cancelled() is (after < 0.3)
    assert not task.cancelled() or not race.open


def test_a_single_address_is_no_race() -> None:
    """No task is made, no timer is set."""
    race = HedgeRace()
    race.plan = {FOUR: (3.0, REFUSED)}
    with pytest.raises(ConnectionRefusedError):
        race.run(FOUR)
    assert str(race.tried) == f"{FOUR}: Connection refused"
