"""Pure parts of a pool: backoff and the Keep-Alive field."""

from __future__ import annotations

from random import Random

import pytest

from balancer.http.h1.response_head import keep_alive_timeout
from balancer.upstream.connector import FAILURES, MIN_PAUSE_S, Backoff


def test_backoff_after_repeated_failures() -> None:
    """From `FAILURES` failures on, one attempt at a time after growing pauses, up to `longest`; a success ends it."""
    backoff = Backoff(Random(1), longest=1.0)
    for _ in range(FAILURES - 1):
        backoff.failed(0.0)
        assert backoff.may_try(opening=100, now=0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        backoff.failed(now)
        assert not backoff.may_try(opening=0, now=now)
        begun = now
        while not backoff.may_try(opening=0, now=now):
            now += 0.01
        assert not backoff.may_try(opening=1, now=now)
        pauses.append(now - begun)
    for number, pause in enumerate(pauses):
        whole = min(1.0, MIN_PAUSE_S * 2**number)
        assert whole / 2 <= pause <= whole + 0.02
    assert len({round(pause, 3) for pause in pauses[-4:]}) > 1, "jitter"
    backoff.succeeded()
    assert backoff.may_try(opening=100, now=now)


def test_backoff_of_zero_is_off() -> None:
    backoff = Backoff(Random(1), longest=0.0)
    for _ in range(100):
        backoff.failed(0.0)
    assert backoff.may_try(opening=100, now=0.0)


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\n\r\n", 5.0),
        (b"HTTP/1.1 200 OK\r\nkeep-alive:timeout=5, max=100\r\n\r\n", 5.0),
        (b"HTTP/1.1 200 OK\r\nA: b\r\nKeep-Alive: max=100, TIMEOUT = \"75\"\r\nC: d\r\n\r\nbody", 75.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=soon\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: max=5\r\nX: timeout=5\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: notimeout=5\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\n\r\nbody\r\nKeep-Alive: timeout=5\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=7", 7.0),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n", 0.0),
        (b"", 0.0),
    ],
)  # fmt: skip
def test_keep_alive_timeout_of_a_head(head: bytes, seconds: float) -> None:
    """Only within the head, only as a parameter of Keep-Alive."""
    assert keep_alive_timeout(head) == seconds
