"""Connection attempts to several addresses (RFC 8305) in virtual time: order, winner, losers."""

from __future__ import annotations

import asyncio

import pytest

from balancer.upstream.dial.dial import Tried, first_of, interleaved
from tests.support.virtual import VirtualLoop, settle

SIX, OTHER_SIX, FOUR, OTHER_FOUR = "2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"
REFUSED = ConnectionRefusedError(111, "Connection refused")
NO_ROUTE = OSError(101, "Network is unreachable")


class ConnectAttempts:
    """Attempts by `plan`: seconds until an address accepts or fails; an absent address never answers."""

    def __init__(self, plan: dict[str, tuple[float, OSError | None]]) -> None:
        self.loop = VirtualLoop(lambda *_: asyncio.Future(), at=0.0)
        self.plan = plan
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
        """The winning address and the time."""
        task = self.start(*addresses)
        ended: list[float] = []
        task.add_done_callback(lambda _: ended.append(self.loop.now()))
        with self.loop:
            self.loop.advance(100.0)
        return task.result()[0], round(ended[0], 6)


def test_families_alternate() -> None:
    """Families alternate, beginning with that of the first address; the one that worked before goes first."""
    assert interleaved([SIX, OTHER_SIX, FOUR, OTHER_FOUR]) == [SIX, FOUR, OTHER_SIX, OTHER_FOUR]
    assert interleaved([FOUR, OTHER_FOUR, SIX]) == [FOUR, SIX, OTHER_FOUR]
    assert interleaved([SIX, OTHER_SIX, FOUR], FOUR) == [FOUR, SIX, OTHER_SIX]
    assert interleaved([FOUR], SIX) == [FOUR]
    assert interleaved([]) == []


def test_quick_first_address() -> None:
    """No second attempt within 250 ms."""
    attempts = ConnectAttempts({SIX: (0.2, None)})
    assert attempts.run(SIX, FOUR) == (SIX, 0.2)
    assert attempts.began == [(SIX, 0.0)]


def test_silent_first_address() -> None:
    """The next attempt runs beside it, and the loser is closed."""
    attempts = ConnectAttempts({FOUR: (0.04, None)})
    assert attempts.run(SIX, FOUR, OTHER_SIX) == (FOUR, 0.29)
    assert attempts.began == [(SIX, 0.0), (FOUR, 0.25)]
    assert attempts.open == {FOUR}


def test_failing_first_address() -> None:
    """After a failure the next attempt begins at once."""
    attempts = ConnectAttempts({SIX: (0.0, NO_ROUTE), FOUR: (0.04, None)})
    assert attempts.run(SIX, FOUR) == (FOUR, 0.04)
    assert f"{SIX}: Network is unreachable" in str(attempts.tried)
    assert f"{FOUR}: no answer" in str(attempts.tried)


def test_slow_first_address_may_win() -> None:
    """The second attempt is slower still."""
    attempts = ConnectAttempts({SIX: (0.3, None), FOUR: (0.1, None)})
    assert attempts.run(SIX, FOUR) == (SIX, 0.3)
    assert attempts.open == {SIX}


def test_simultaneous_success() -> None:
    """The loser is closed."""
    attempts = ConnectAttempts({SIX: (0.5, None), FOUR: (0.25, None)})
    attempts.run(SIX, FOUR)
    assert len(attempts.open) == 1


def test_all_addresses_fail() -> None:
    """A refusal is raised in preference to an unreachable network; every attempt is reported."""
    attempts = ConnectAttempts({SIX: (0.0, NO_ROUTE), FOUR: (0.01, REFUSED), OTHER_SIX: (0.0, NO_ROUTE)})
    with pytest.raises(ConnectionRefusedError):
        attempts.run(SIX, FOUR, OTHER_SIX)
    assert str(attempts.tried).count("Network is unreachable") == 2
    assert f"{FOUR}: Connection refused" in str(attempts.tried)
