"""gRPC over raw frames: outcomes, retries, errors of the balancer, deadlines, timeouts and ends of streams."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.http.grpc.call import with_timeout
from balancer.http.grpc.health import check_fault
from balancer.http.grpc.status import NAMES, UNKNOWN, code_of_http, percent_encoded, status_in
from balancer.http.h2.events import CANCEL, ENHANCE_YOUR_CALM, INTERNAL_ERROR, NO_ERROR
from policies.facts import Outcome
from tests.support.grpc_plays import MESSAGE, ending, rpc, serve_grpc
from tests.support.http2_client import Answer, Http2Client, http2_client
from tests.support.scripted_transports import Http2, Play, Script, sending, values
from tests.support.stage import Stage
from tests.support.wire import response

Fields = tuple[tuple[bytes, bytes], ...]
SAFE = {"grpc_statuses": ["UNAVAILABLE"]}


def answering(code: int) -> Script:
    """A response of one message, with its status in trailers."""

    async def script(play: Play) -> None:
        await play.read()
        await play.head(200, (b"content-type", b"application/grpc"))
        await play.data(MESSAGE)
        await play.end((b"grpc-status", b"%d" % code), (b"grpc-message", b"done"))

    return script


async def silent(play: Play) -> None:
    await play.read()
    await asyncio.Event().wait()


def own(answer: Answer) -> tuple[str, str]:
    """Name and message of a response without messages that the balancer has made."""
    assert (answer.status, answer.body, answer.head[b"content-type"]) == (200, b"", b"application/grpc")
    return NAMES[int(answer.head[b"grpc-status"])], answer.head[b"grpc-message"].decode()


async def answer_to(stage: Stage, *scripts: Script, fields: Fields = (), **settings: Any) -> Answer:
    """The answer to an RPC, by workers with these scripts."""
    await serve_grpc(stage, *scripts, **settings)
    client = await http2_client(stage)
    return await client.answer(rpc(client, *fields))


# --- the worker's side


async def test_a_worker_gets_te_and_the_client_its_trailers(stage: Stage) -> None:
    (plays,) = await serve_grpc(stage, answering(0))
    client = await http2_client(stage)
    answer = await client.answer(rpc(client, (b"x-bin-bin", b"AAEC")))
    assert (answer.body, answer.trailers) == (MESSAGE, {b"grpc-status": b"0", b"grpc-message": b"done"})
    (play,) = plays
    assert values(play.fields, b"te") == [b"trailers"]
    assert values(play.fields, b"content-type") == [b"application/grpc"]
    assert values(play.fields, b"x-bin-bin") == [b"AAEC"]
    assert bytes(play.body) == MESSAGE


async def test_te_reaches_a_worker_in_http2_from_any_client(stage: Stage) -> None:
    (plays,) = await serve_grpc(stage, answering(0))
    client = await http2_client(stage)
    await client.ask((b"te", b"trailers"))
    await client.ask()
    assert [values(play.fields, b"te") for play in plays] == [[b"trailers"], []]


FAILURES = {"UNKNOWN": "error_status", "DEADLINE_EXCEEDED": "timeout", "INTERNAL": "error_status"} | {
    "UNAVAILABLE": "error_status",
    "DATA_LOSS": "error_status",
}


@pytest.mark.parametrize("is_trailers_only", [True, False])
@pytest.mark.parametrize("name", NAMES)
async def test_outcome_of_each_status(stage: Stage, name: str, is_trailers_only: bool) -> None:
    """Those that HTTP has as 5xx count as failures of the endpoint, the others but OK as client errors."""
    code = NAMES.index(name)
    await serve_grpc(stage, ending(code) if is_trailers_only else answering(code))
    outcomes: list[Outcome] = []
    stage.cluster.router.active.observe = lambda state, outcome, now: outcomes.append(outcome)
    client = await http2_client(stage)
    answer = await client.answer(rpc(client))
    assert (answer.trailers or answer.head)[b"grpc-status"] == b"%d" % code
    assert stage.outcomes() == {FAILURES.get(name, "ok"): 1}
    assert [outcome.is_client_error for outcome in outcomes] == [name not in FAILURES and name != "OK"]
    assert stage.cluster.counts.worker_errors == (name in FAILURES)
    assert [NAMES[i] for i, number in enumerate(stage.cluster.counts.rpcs) if number] == [name]


@pytest.mark.parametrize(
    ("status", "length", "outcome"),
    [(200, None, "error_status"), (404, 0, "ok"), (500, 0, "error_status")],
    ids=["no status of gRPC", "404", "500"],
)
async def test_http_status_passes_and_counts_as_in_http(
    stage: Stage, status: int, length: int | None, outcome: str
) -> None:
    """And a response without a status of gRPC is a failure."""
    assert (await answer_to(stage, sending(status, length=length))).status == status
    assert stage.outcomes() == {outcome: 1}


@pytest.mark.parametrize(("status", "name"), [(200, "UNKNOWN"), (404, "UNIMPLEMENTED"), (431, "INTERNAL")])
def test_http_status_in_place_of_a_grpc_status(status: int, name: str) -> None:
    """As clients translate it (grpc/doc/http-grpc-status-mapping.md)."""
    assert NAMES[code_of_http(status)] == name


async def test_other_requests_are_not_judged_by_grpc_status(stage: Stage) -> None:
    await serve_grpc(stage, answering(14))
    client = await http2_client(stage)
    await client.ask((b"content-type", b"application/grpc-web"), body=b"", method=b"POST")
    assert stage.outcomes() == {"ok": 1}
    assert not any(stage.cluster.counts.rpcs)


# --- retries


@pytest.mark.parametrize(
    ("script", "retry"),
    [(ending(14), {}), (answering(14), SAFE), (ending(14), {**SAFE, "share": 0.0, "per_second": 0.0})],
    ids=["by default", "after a message", "beyond the budget"],
)
async def test_unavailable_is_not_retried(stage: Stage, script: Script, retry: dict[str, Any]) -> None:
    """By default a worker may have processed it."""
    first, second = await serve_grpc(stage, script, ending(0), retry=retry)
    client = await http2_client(stage)
    answer = await client.answer(rpc(client))
    assert (answer.trailers or answer.head)[b"grpc-status"] == b"14"
    assert (len(first), len(second)) == (1, 0)


@pytest.mark.parametrize(
    ("retry", "fields"),
    [(SAFE, ()), ({"idempotency_key": True}, ((b"idempotency-key", b"1"),))],
)
async def test_unavailable_is_retried_where_that_is_said_to_be_safe(
    stage: Stage, retry: dict[str, Any], fields: Fields
) -> None:
    first, second = await serve_grpc(stage, ending(14), answering(0), retry=retry)
    client = await http2_client(stage)
    answer = await client.answer(rpc(client, *fields))
    assert (answer.body, answer.trailers[b"grpc-status"]) == (MESSAGE, b"0")
    assert (bytes(first[0].body), bytes(second[0].body)) == (MESSAGE, MESSAGE)
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"error_status": 1}, {"ok": 1})
    assert (stage.cluster.counts.retried, stage.cluster.counts.worker_errors) == (1, 0)


@pytest.mark.parametrize(("pushback", "retried"), [(b"0", 1), (b"100", 0), (b"-1", 0)])
async def test_a_worker_may_ask_not_to_be_retried_now(stage: Stage, pushback: bytes, retried: int) -> None:
    await answer_to(stage, ending(14, (b"grpc-retry-pushback-ms", pushback)), answering(0), retry=SAFE)
    assert stage.cluster.counts.retried == retried


async def test_rpc_that_succeeds_after_a_status_of_http_has_the_last_status(stage: Stage) -> None:
    async def overloaded(play: Play) -> None:
        await play.read()
        await play.head(503, (b"content-length", b"2"))
        await play.data(b"no")
        await play.end()

    answer = await answer_to(stage, overloaded, ending(0), retry={**SAFE, "statuses": [503]})
    assert answer.head[b"grpc-status"] == b"0"
    assert [NAMES[i] for i, number in enumerate(stage.cluster.counts.rpcs) if number] == ["OK"]


# --- errors of the balancer


async def test_errors_are_grpc_responses(stage: Stage) -> None:
    await stage.serve(stage.dead_port(), endpoints=[
        {"id": "w0", "address": f"http://127.0.0.1:{stage.dead_port()}", "region": "r", "transport": "http2"}
    ])  # fmt: skip
    client = await http2_client(stage)
    name, message = own(await client.answer(rpc(client)))
    assert name == "UNAVAILABLE"
    assert message.startswith("connect_failed: ")
    assert "(request " in message
    assert stage.cluster.counts.errors == {"connect_failed": 1}


async def test_endpoint_without_http2(stage: Stage) -> None:
    """The message names the key; the endpoint is not to blame, and no connection is opened."""
    worker = await stage.serve_worker(response())
    client = await http2_client(stage)
    for _ in range(2):
        name, message = own(await client.answer(rpc(client)))
        assert (name, 'transport = "http2"' in message) == ("UNIMPLEMENTED", True)
    assert stage.outcomes() == {"abandoned": 2}
    assert worker.requests == []
    assert stage.pool().counts.opened == 0


async def test_rate_limit(stage: Stage) -> None:
    limit = {"name": "one", "requests": 1, "period": 10, "everywhere": True}
    await serve_grpc(stage, answering(0), rate_limits=[limit])
    client = await http2_client(stage)
    await client.answer(rpc(client))
    answer = await client.answer(rpc(client))
    assert own(answer)[0] == "RESOURCE_EXHAUSTED"
    assert answer.head[b"grpc-retry-pushback-ms"] == b"10000"


async def test_no_endpoint(stage: Stage) -> None:
    await serve_grpc(stage, silent, panic={"threshold": 0})
    stage.cluster.router.set_healthy("w0", False)
    client = await http2_client(stage)
    answer = await client.answer(rpc(client))
    name, message = own(answer)
    assert (name, message.partition(" (")[0]) == ("UNAVAILABLE", "no_endpoint_available: no endpoint is up")
    assert answer.head[b"grpc-retry-pushback-ms"] == b"1000"


@pytest.mark.parametrize("body", [b"", MESSAGE])
@pytest.mark.parametrize("timeout", [b"1", b"123456789S", b"1s", b"-1S", b"1.5S", b"S"])
async def test_malformed_timeout(stage: Stage, timeout: bytes, body: bytes) -> None:
    await serve_grpc(stage, answering(0))
    client = await http2_client(stage)
    name, message = own(await client.answer(rpc(client, (b"grpc-timeout", timeout), body=body)))
    assert name == "INVALID_ARGUMENT"
    assert message == ("bad_grpc_timeout: grpc-timeout must be up to 8 digits and one of H, M, S, m, u, n")
    assert (await client.answer(rpc(client))).trailers[b"grpc-status"] == b"0"  # the connection stays


# --- deadlines and timeouts


async def test_deadline_is_passed_on_and_kept(stage: Stage) -> None:
    """The client is answered, the worker's stream is reset, and the endpoint is not charged: the limit is the
    client's."""
    (plays,) = await serve_grpc(stage, silent)
    client = await http2_client(stage)
    stream = rpc(client, (b"grpc-timeout", b"5S"))
    await stage.eventually(lambda: plays and plays[0].ended.is_set())
    assert values(plays[0].fields, b"grpc-timeout") == [b"5S"]
    stage.advance(4.9)
    stage.advance(0.2)
    name, message = own(await client.answer(stream))
    assert name == "DEADLINE_EXCEEDED"
    assert message.startswith("request_timeout: not answered within the client's 5 s (request ")
    await stage.eventually(lambda: plays[0].reset_code == CANCEL)
    assert stage.outcomes() == {"abandoned": 1}


async def test_a_deadline_replaces_the_first_byte_timeout(stage: Stage) -> None:
    await serve_grpc(stage, silent, timeouts={"first_byte": 10}, retries=0)
    client = await http2_client(stage)
    limited, unlimited = rpc(client, (b"grpc-timeout", b"1M")), rpc(client)
    await stage.turn(200)
    stage.advance(11)
    assert own(await client.answer(unlimited))[0] == "DEADLINE_EXCEEDED"
    assert client.answers[limited].head == {}
    stage.advance(50)
    assert own(await client.answer(limited))[0] == "DEADLINE_EXCEEDED"
    assert stage.outcomes() == {"timeout": 1, "abandoned": 1}


async def test_wait_in_the_queue_keeps_to_the_deadline_and_shortens_it(stage: Stage) -> None:
    gate = asyncio.Event()

    async def script(play: Play) -> None:
        await gate.wait()
        await answering(0)(play)

    (plays,) = await serve_grpc(stage, script, limits={"in_flight": 1})
    client = await http2_client(stage)
    first = rpc(client)
    await stage.eventually(lambda: plays)
    short, long = rpc(client, (b"grpc-timeout", b"2S")), rpc(client, (b"grpc-timeout", b"9S"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 2)
    stage.advance(3)
    assert own(await client.answer(short))[0] == "DEADLINE_EXCEEDED"
    gate.set()
    for stream in (first, long):
        assert (await client.answer(stream)).trailers[b"grpc-status"] == b"0"
    assert values(plays[1].fields, b"grpc-timeout") == [b"6000000u"]


async def test_silent_streams_stay_open(stage: Stage) -> None:
    """Neither request_idle nor body_idle holds for the streams of an RPC; tunnel_idle does."""
    timeouts = {"request_idle": 5, "body_idle": 5, "first_byte": 5, "tunnel_idle": 100}
    (plays,) = await serve_grpc(stage, both_ways, timeouts=timeouts)
    client = await http2_client(stage)
    stream = rpc(client, body=None)
    await client.until(lambda: client.answers[stream].head)
    await advance(stage, 90)
    client.send(stream, MESSAGE)
    await client.until(lambda: client.answers[stream].body == MESSAGE)
    await advance(stage, 110)
    answer = await client.answer(stream)
    assert answer.trailers[b"grpc-status"] == b"4"
    assert answer.trailers[b"grpc-message"] == (b"response_timeout: no message in either direction for 100 s")
    await stage.eventually(lambda: plays[0].reset_code == CANCEL)


async def advance(stage: Stage, seconds: int) -> None:
    """Let time pass in steps, so that PINGs are answered."""
    for _ in range(seconds // 5):
        stage.advance(5)
        await stage.turn()


async def both_ways(play: Play) -> None:
    """Each byte goes back as it comes."""
    assert isinstance(play, Http2)
    await play.head(200, (b"content-type", b"application/grpc"))
    play.is_reading = True
    sent = 0
    while not play.ended.is_set() and play.reset_code is None:
        if len(play.body) > sent:
            data = bytes(play.body[sent:])
            sent += len(data)
            await play.data(data)
        await asyncio.sleep(0)
    if play.reset_code is None:
        await play.end((b"grpc-status", b"0"))


# --- ends of streams


async def test_messages_pass_in_both_directions_at_once(stage: Stage) -> None:
    (plays,) = await serve_grpc(stage, both_ways)
    client = await http2_client(stage)
    stream = rpc(client, body=None)
    answer = client.answers[stream]
    await client.until(lambda: answer.head)  # before the request has ended

    def has_size(answer: Answer, size: int) -> bool:
        return answer.size == size

    for number in range(1, 4):
        client.send(stream, MESSAGE)
        await client.until(partial(has_size, answer, number * len(MESSAGE)))
    client.send(stream, b"", is_last=True)
    assert (await client.answer(stream)).trailers[b"grpc-status"] == b"0"
    assert plays[0].ended.is_set()


async def test_cancellation_by_the_client_reaches_the_worker(stage: Stage) -> None:
    (plays,) = await serve_grpc(stage, both_ways)
    client = await http2_client(stage)
    stream = rpc(client, body=None)
    await client.until(lambda: client.answers[stream].head)
    client.engine.reset(stream, CANCEL)
    client.flush()
    await stage.eventually(lambda: plays[0].reset_code == CANCEL)
    assert stage.outcomes() == {"abandoned": 1}


async def answer_after_message(client: Http2Client, has_come: asyncio.Event) -> Answer:
    """The whole answer to an RPC; `has_come` is set once its message has."""
    stream = rpc(client)
    answer = client.answers[stream]
    await client.until(lambda: answer.size == len(MESSAGE))
    has_come.set()
    return await client.answer(stream)


@pytest.mark.parametrize("code", [CANCEL, ENHANCE_YOUR_CALM, INTERNAL_ERROR, None])
async def test_end_amid_a_response_reaches_the_client(stage: Stage, code: int | None) -> None:
    """A reset as it is, and a broken connection as a status."""
    has_come = asyncio.Event()

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        await play.head(200)
        await play.data(MESSAGE)
        await has_come.wait()
        play.die() if code is None else play.reset(code)

    await serve_grpc(stage, script)
    client = await http2_client(stage)
    answer = await answer_after_message(client, has_come)
    assert (answer.body, answer.reset) == (MESSAGE, code)
    if code is None:
        assert answer.trailers[b"grpc-status"] == b"14"
        assert answer.trailers[b"grpc-message"].startswith(b"connection_broken: ")
    else:
        assert stage.outcomes() == {"reset": 1}


@pytest.mark.parametrize(
    ("code", "name"),
    [(CANCEL, "CANCELLED"), (ENHANCE_YOUR_CALM, "RESOURCE_EXHAUSTED"), (INTERNAL_ERROR, "INTERNAL")],
)
async def test_reset_before_the_response_is_a_status(stage: Stage, code: int, name: str) -> None:
    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        await play.read()
        play.reset(code)

    assert own(await answer_to(stage, script))[0] == name


async def test_worker_may_end_before_the_client(stage: Stage) -> None:
    """What the client sends after the status is not read; its stream ends without an error."""
    (plays,) = await serve_grpc(stage, ending_at_once)
    client = await http2_client(stage)
    answer = await client.answer(stream := rpc(client, body=None))
    for _ in range(3):
        stage.advance(1)
    await client.until(lambda: client.answers[stream].reset is not None)
    assert (answer.trailers[b"grpc-status"], answer.reset) == (b"0", NO_ERROR)
    assert stage.outcomes() == {"ok": 1}
    assert len(plays) == 1


async def ending_at_once(play: Play) -> None:
    await play.head(200)
    await play.end((b"grpc-status", b"0"))


async def test_access_log_has_the_status(stage: Stage, tmp_path: Path) -> None:
    """A failure is logged whatever the sampling rate; other requests have no such field."""
    log = tmp_path / "access.log"
    await serve_grpc(stage, answering(14), log={"access": "json", "path": str(log), "sample": 1e-9})
    client = await http2_client(stage)
    await client.answer(rpc(client))
    await client.answer(rpc(client, (b"grpc-timeout", b"x")))
    await stage.ask(b"GARBAGE\r\n\r\n")
    await stage.close()
    first, second, third = (json.loads(line) for line in log.read_text().splitlines())
    assert (first["status"], first["grpc_status"], first["end"]) == (200, "UNAVAILABLE", "error_status")
    assert first["sample"] == 1
    assert (second["reason"], second["grpc_status"]) == ("bad_grpc_timeout", "INVALID_ARGUMENT")
    assert "grpc_status" not in third


# --- health checks

SERVING = b"\0\0\0\0\2\x08\1"
OK = b"\r\ngrpc-status: 0\r\n"


@pytest.mark.parametrize(
    ("body", "fields", "fault"),
    [
        (SERVING, OK, None),
        (b"\0\0\0\0\2\x08\2", OK, "NOT_SERVING"),
        (b"\0\0\0\0\2\x08\3", OK, "SERVICE_UNKNOWN"),
        (b"\0\0\0\0\0", OK, "UNKNOWN"),
        (b"", OK, "not an uncompressed message of grpc.health.v1"),
        (b"\1" + SERVING[1:], OK, "not an uncompressed message of grpc.health.v1"),
        (SERVING + b"x", OK, "not an uncompressed message of grpc.health.v1"),
        (b"\0\0\0\0\2\x08\x09", OK, "not a HealthCheckResponse"),
        (b"\0\0\0\0\1\x08", OK, "not a HealthCheckResponse"),
        (b"\0\0\0\0\3\x0a\1\1", OK, "not a HealthCheckResponse"),
        (b"\0\0\0\0\4\x10\5\x08\1", OK, None),  # with a field of a later version
        (b"\0\0\0\0\3\x08\x81\0", OK, None),
        (b"", b"\r\n", "status 200 without grpc-status: not a gRPC server"),
        (b"", b"\r\ngrpc-status: 12\r\n", "UNIMPLEMENTED: the worker has no service grpc.health.v1.Health"),
        (b"", b"\r\ngrpc-status: 5\r\n", "NOT_FOUND: the worker's health service does not know 'a.B'"),
        (b"", b"\r\ngrpc-status: 8\r\ngrpc-message: full\r\n", "RESOURCE_EXHAUSTED: full"),
    ],
)
def test_response_to_a_check(body: bytes, fields: bytes, fault: str | None) -> None:
    assert check_fault("a.B", 200, fields, body) == fault


@pytest.mark.parametrize(("code", "fault"), [(b"14", "UNAVAILABLE: busy"), (b"0", "status 503")])
def test_check_that_is_answered_by_503(code: bytes, fault: str) -> None:
    """The status of gRPC tells more, but cannot make it pass."""
    fields = b"\r\ngrpc-status: " + code + b"\r\ngrpc-message: busy\r\n"
    assert check_fault("a.B", 503, fields, SERVING) == fault


async def test_check_by_grpc(stage: Stage) -> None:
    """One message with the name of the service; the result decides."""
    states = iter((1, 2))

    async def health(play: Play) -> None:
        await play.read()
        await play.head(200, (b"content-type", b"application/grpc"))
        await play.data(SERVING[:-1] + bytes((next(states),)))
        await play.end((b"grpc-status", b"0"))

    checks = {"grpc": "a.B", "interval": 1, "fast_interval": 1, "fall": 1, "rise": 1}
    (plays,) = await serve_grpc(stage, health, health_checks=checks)
    for number, is_healthy in ((1, True), (2, False)):
        stage.advance(2)
        await stage.eventually(lambda: stage.control_plane.checks.by_id["w0"].request is None)
        assert (len(plays), stage.state("w0").passes_checks) == (number, is_healthy)
    (play, _) = plays
    assert (play.method, play.target, bytes(play.body)) == (
        b"POST", b"/grpc.health.v1.Health/Check", b"\0\0\0\0\5\x0a\3a.B",
    )  # fmt: skip
    assert values(play.fields, b"te") == [b"trailers"]
    assert stage.control_plane.checks.by_id["w0"].state.last_fault == "NOT_SERVING"


async def test_check_by_grpc_needs_http2(stage: Stage) -> None:
    worker = await stage.worker(response())
    await stage.serve(worker, health_checks={"grpc": "", "fall": 1, "interval": 1, "fast_interval": 1})
    stage.advance(2)
    state = stage.control_plane.checks.by_id["w0"].state
    assert (state.is_healthy, state.last_fault) == (False, 'a check by gRPC needs transport = "http2"')
    assert worker.connections == []


# --- parts


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\r\na: b\r\ngrpc-status: 5\r\n", 5),
        (b"\r\ngrpc-status:16\r\n", 16),
        (b"\r\ngrpc-status: 17\r\n", UNKNOWN),
        (b"\r\ngrpc-status: x\r\n", UNKNOWN),
        (b"\r\nx-grpc-status: 5\r\n", UNKNOWN),
        (b"\r\na: b\r\n", None),
        (b"", None),
    ],
)
def test_status_in_fields(block: bytes, code: int | None) -> None:
    assert status_in(block) == code


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.25, b"250000u"), (-1.0, b"1u"), (99.0, b"99000000u"), (3600.0, b"3600000m"), (2e5, b"200000S")],
)
def test_timeout_for_a_worker(seconds: float, written: bytes) -> None:
    head = b"POST / HTTP/1.1\r\ngrpc-timeout: 9H\r\na: b\r\n\r\n"
    assert with_timeout(head, seconds) == head.replace(b"9H", written)


def test_message_is_percent_encoded() -> None:
    assert percent_encoded("100 % é\n") == b"100 %25 %C3%A9%0A"
