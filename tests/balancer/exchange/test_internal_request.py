"""Internal requests: leasing, retries, limits, and one result after the connection was released or closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from balancer.errors import ConnectFailed, ConnectionBroken, UpstreamError
from balancer.http.h1.response_head import Response, ResponseHeads
from balancer.upstream.internal_request import BodyTooLong, InternalRequest, InternalResult, internal_head
from balancer.upstream.pool import LeaseWaiter, Pool
from balancer.upstream.request import ResponseSink, UpstreamRequest
from policies.facts import Endpoint

HEAD = internal_head(Endpoint("a", "http://a.example:81", "r"), "/up", "check")


class Upstream:
    """A leased connection that records what is done with it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def send(self, head: bytes, sink: ResponseSink, method: bytes, body: None = None) -> None:
        self.log.append("send")

    def release(self) -> None:
        self.log.append("release")

    def close(self) -> None:
        self.log.append("close")


class Connections:
    """A pool with one idle connection at most."""

    def __init__(self, log: list[str], *, has_idle: bool) -> None:
        self.log = log
        self.has_idle = has_idle

    def lease_quiet(self) -> UpstreamRequest | None:
        return cast(UpstreamRequest, Upstream(self.log)) if self.has_idle else None

    def open(self, waiter: LeaseWaiter, *, is_trial: bool = False) -> None:
        self.log.append("open, trial" if is_trial else "open")


class Scene:
    """One request with a timeout of 2 s from 10 s on. `log`: actions in order, the result among them."""

    def __init__(self, head: bytes | None = HEAD, *, has_idle: bool = True, is_trial: bool = False) -> None:
        self.log: list[str] = []
        self.results: list[InternalResult] = []
        self.now = 10.0
        self.request = InternalRequest(
            head, self.ended, body_limit=1024, timeout=2.0, started_at=10.0, clock=lambda: self.now
        )
        self.request.lease(cast(Pool, Connections(self.log, has_idle=has_idle)), is_trial=is_trial)

    def ended(self, result: InternalResult) -> None:
        self.log.append("result")
        self.results.append(result)

    def connect(self) -> None:
        self.request.connected(cast(UpstreamRequest, Upstream(self.log)))


def head(line: bytes = b"200 OK") -> Response:
    return ResponseHeads().incoming(b"HTTP/1.1 " + line + b"\r\nTransfer-Encoding: chunked\r\n")


def test_host_and_user_agent() -> None:
    assert HEAD == (
        b"GET /up HTTP/1.1\r\nHost: a.example:81\r\nUser-Agent: steelyard-check\r\nAccept: */*\r\n\r\n"
    )


def test_connection_is_released_before_the_result() -> None:
    scene = Scene()
    scene.now = 10.5
    scene.request.response_started(head(b"404 Not Found"))
    scene.request.response_body(b"x" * 1024)
    scene.request.response_ended(b"")
    assert scene.log == ["send", "release", "result"]
    [result] = scene.results
    assert (result.error, result.fault, result.status, result.seconds) == (None, None, 404, 0.5)
    assert result.is_reachable


def test_request_without_a_head_only_connects() -> None:
    scene = Scene(None, has_idle=False, is_trial=True)
    scene.connect()
    assert scene.log == ["open, trial", "release", "result"]
    assert (scene.results[0].error, scene.results[0].status) == (None, 0)


def test_stale_connection_is_replaced_once() -> None:
    scene = Scene(is_trial=True)
    scene.request.response_failed(ConnectionBroken("gone"))
    scene.connect()
    assert scene.log == ["send", "close", "open, trial", "send"]
    scene.request.response_failed(ConnectionBroken("gone again"))
    assert scene.log[4:] == ["close", "result"]
    assert "gone again" in (scene.results[0].fault or "")
    assert scene.results[0].is_reachable


@pytest.mark.parametrize(
    ("has_idle", "has_head", "error", "fault", "is_reachable"),
    [
        (False, False, ConnectionBroken("gone"), "connection_broken: gone", True),
        (True, True, ConnectionBroken("gone"), "connection_broken: gone", True),
        (True, False, ConnectFailed("refused"), "no connection: refused", False),
    ],
    ids=["new connection", "after a head", "refused"],
)
def test_no_retry(
    has_idle: bool, has_head: bool, error: UpstreamError, fault: str, is_reachable: bool
) -> None:
    scene = Scene(has_idle=has_idle)
    if not has_idle:
        scene.connect()
    if has_head:
        scene.request.response_started(head())
    scene.request.response_failed(error)
    assert scene.log[-3:] == ["send", "close", "result"]
    [result] = scene.results
    assert (result.error, result.fault, result.is_reachable) == (error, fault, is_reachable)


def test_body_over_the_limit() -> None:
    scene = Scene()
    scene.request.response_started(head())
    for _ in range(3):  # of one read
        scene.request.response_body(b"x" * 1000)
    assert scene.log == ["send", "close", "result"]
    [result] = scene.results
    assert isinstance(result.error, BodyTooLong)
    assert (result.status, result.fault) == (200, "more than 1 KiB of body")


def test_interim_responses_are_skipped_and_101_is_a_fault() -> None:
    scene = Scene()
    scene.request.response_started(head(b"103 Early Hints"))
    assert scene.log == ["send"]
    scene.request.response_started(head(b"101 Switching Protocols"))
    assert scene.log == ["send", "close", "result"]
    assert (scene.results[0].fault, scene.results[0].status) == ("status 101", 0)


@pytest.mark.parametrize(
    ("has_idle", "fault", "log"),
    [
        (True, "no answer within 2 s", ["send", "close", "result"]),
        (False, "no connection within 2 s", ["open", "result"]),
    ],
)
def test_timeout(has_idle: bool, fault: str, log: list[str]) -> None:
    scene = Scene(has_idle=has_idle)
    scene.request.end_if_overdue(11.9)
    assert scene.results == []
    scene.request.end_if_overdue(12.0)
    assert scene.log == log
    [result] = scene.results
    assert (result.fault, result.is_reachable) == (fault, has_idle)


@pytest.mark.parametrize("end", [InternalRequest.cancel, lambda request: request.end_if_overdue(99.0)])
def test_late_connection_goes_to_the_pool(end: Callable[[InternalRequest], None]) -> None:
    scene = Scene(has_idle=False)
    end(scene.request)
    before = len(scene.results)
    scene.connect()
    assert scene.log[-1] == "release"
    assert len(scene.results) == before


def test_cancelled_request_has_no_result() -> None:
    scene = Scene()
    scene.request.cancel()
    scene.request.response_failed(ConnectionBroken("gone"))
    assert (scene.log, scene.results) == (["send", "close"], [])
