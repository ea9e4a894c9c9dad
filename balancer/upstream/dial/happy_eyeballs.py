"""Happy Eyeballs: staggered connection attempts to several addresses (RFC 8305).

An attempt begins `STAGGER` seconds after the previous one, or as soon as an attempt has failed. The first to connect
wins and all others are cancelled; no connection stays open when the race ends, however it ends. Independent of sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import TypeVar

STAGGER = 0.25
"""Seconds between attempts: the recommended Connection Attempt Delay (§ 5)."""

T = TypeVar("T")


def interleaved(hosts: Sequence[str], first: str | None = None) -> list[str]:
    """Addresses with alternating families, beginning with the family of the first (§ 4); `first` is moved to the front
    if present."""
    is_six = bool(hosts) and ":" in hosts[0]
    same = [host for host in hosts if (":" in host) is is_six]
    other = [host for host in hosts if (":" in host) is not is_six]
    turns = [host for pair in zip_longest(same, other) for host in pair if host is not None]
    if first in turns:
        turns.remove(first)
        turns.insert(0, first)
    return turns


class Tried:
    """Result of each attempted address, in order of attempts; None while an attempt is pending."""

    def __init__(self) -> None:
        self.by_address: dict[str, OSError | None] = {}

    def __str__(self) -> str:
        return "; ".join(f"{address}: {_words(error)}" for address, error in self.by_address.items())

    @property
    def fault(self) -> OSError:
        """Most informative error: a refused or reset connection comes before an unreachable network, which may be of an
        address family that this host lacks."""
        faults = [error for error in self.by_address.values() if error is not None]
        return next((error for error in faults if isinstance(error, ConnectionError)), faults[0])


def _words(error: OSError | None) -> str:
    return "no answer" if error is None else error.strerror or str(error)


async def first_of(
    addresses: Sequence[str], begin: Callable[[str], Awaitable[T]], discard: Callable[[T], None], tried: Tried
) -> tuple[str, T]:
    """Connect to the first of `addresses` that `begin` succeeds with; returns the address and the result.

    `discard` receives connections that are not needed. Raises `OSError` if all attempts fail; `tried` holds the
    details.
    """
    if len(addresses) > 1:
        return await _race(addresses, begin, discard, tried)
    (address,) = addresses
    tried.by_address[address] = None
    try:
        return address, await begin(address)
    except OSError as error:
        tried.by_address[address] = error
        raise


async def _race(
    addresses: Sequence[str], begin: Callable[[str], Awaitable[T]], discard: Callable[[T], None], tried: Tried
) -> tuple[str, T]:
    waiting = deque(addresses)
    running: dict[asyncio.Future[T], str] = {}
    try:
        while waiting or running:
            if waiting:
                address = waiting.popleft()
                tried.by_address[address] = None
                running[asyncio.ensure_future(begin(address))] = address
            await asyncio.wait(
                running, timeout=STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task.done()]:
                address = running.pop(task)
                error = task.exception()
                if error is None:
                    return address, task.result()
                if not isinstance(error, OSError):
                    raise error
                tried.by_address[address] = error
        raise tried.fault
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(lambda task: _discard_late(task, discard))


def _discard_late(task: asyncio.Future[T], discard: Callable[[T], None]) -> None:
    """Discard the result of a cancelled attempt that had succeeded nevertheless."""
    try:
        error = task.exception()
    except asyncio.CancelledError:  # asking makes the task let go of it; its traceback holds the TLS context
        return
    if error is None:
        discard(task.result())
