"""The contract of all transports: messages, back-pressure, failures.

The worker speaks the protocol of the transport, and scripts do not name it. `KEEPS` lists what a transport may lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from balancer.config.schema.limits import RESPONSE_FIELDS
from tests.support.scripted_transports import (
    KEEPS,
    MEBI,
    TRANSPORTS,
    Http1,
    KeptParts,
    Play,
    Script,
    echo,
    hello,
    over,
    sending,
    serve_over,
    values,
)
from tests.support.stage import Stage
from tests.support.wire import Wire, fault_of, get, post, post_chunked


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def keeps(transport: str) -> KeptParts:
    return KEEPS[transport]


Begin = Callable[..., Awaitable[list[Play]]]


@pytest.fixture
async def begin(stage: Stage, transport: str) -> Begin:
    """Start a balancer before a worker with a script; the function returns the requests as they begin."""

    async def begin(script: Script, streams: int | None = None, **settings: Any) -> list[Play]:
        plays: list[Play] = []
        worker = over(transport, script, plays, streams)
        await serve_over(stage, worker, transport, **settings)
        return plays

    return begin


# --- messages


NATIVE_NAMES = {
    *(b"host", b"cookie", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port"),
    *(b"x-forwarded-proto", b"x-real-ip", b"x-request-id", b"x-request-start"),
}


async def test_get_is_forwarded(stage: Stage, begin: Begin) -> None:
    """Method, target, Host and fields are forwarded, also on a reused connection; a library adds none of its own."""
    plays = await begin(hello)
    client = await stage.client()
    for _ in range(3):
        answer = await client.ask(get(b"/a%20b?c=d&e", b"X-Client: 2", b"Cookie: a=b"))
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.values(b"Content-Length") == [b"5"]
    play = plays[-1]
    assert (play.method, play.target) == (b"GET", b"/a%20b?c=d&e")
    assert values(play.fields, b"host") == [b"example.org"]
    assert values(play.fields, b"x-client") == [b"2"]
    assert values(play.fields, b"x-forwarded-for") == [b"127.0.0.1"]
    assert {name for name, _ in play.fields} <= {*NATIVE_NAMES, b"x-client"}
    assert stage.outcomes() == {"ok": 3}


async def test_head_has_no_body(stage: Stage, begin: Begin) -> None:
    """Content-Length is that of GET, and no body follows."""
    await begin(hello)
    client = await stage.client()
    answer = await client.ask(get(method=b"HEAD"), to_head=True)
    assert (answer.status, answer.value(b"Content-Length")) == (200, b"5")
    assert (await client.ask(get())).body == b"hello"


@pytest.mark.parametrize("body", [b"", b"small", MEBI], ids=["empty", "small", "1 MiB"])
async def test_body_with_a_length(stage: Stage, begin: Begin, body: bytes) -> None:
    """Every byte arrives in both directions, with the length stated."""
    plays = await begin(echo)
    answer = await stage.ask(post(body))
    assert answer.body == body
    assert values(plays[0].fields, b"content-length") == [b"%d" % len(body)]


async def test_chunked_body(stage: Stage, begin: Begin) -> None:
    """Of unknown length, with pieces of several sizes."""
    plays = await begin(echo)
    pieces = [b"a", MEBI, b"b" * 70_000, b"c"]
    answer = await stage.ask(post_chunked(*pieces))
    assert answer.body == b"".join(pieces)
    assert values(plays[0].fields, b"content-length") == []


async def test_body_behind_an_expectation(stage: Stage, begin: Begin, transport: str) -> None:
    """The worker sends no 100, and the client does not wait for it any longer (RFC 9110 § 10.1.1). aiohttp cannot pass
    the expectation on; the client gets a 100 of the balancer."""
    plays = await begin(echo)
    client = await stage.sending(post(b"body", b"Expect: 100-continue").removesuffix(b"body"))
    if transport == "aiohttp":
        assert (await client.head()).status == 100
    else:
        await stage.eventually(lambda: plays)
    await client.send(b"body")
    assert (await client.response()).body == b"body"
    assert values(plays[0].fields, b"expect") == [b"100-continue"][transport == "aiohttp" :]


@pytest.mark.parametrize("method", [b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"REPORT"])
async def test_any_method_with_a_body(stage: Stage, begin: Begin, method: bytes) -> None:
    plays = await begin(echo)
    answer = await stage.ask(post(b"data", method=method))
    assert (answer.body, plays[0].method) == (b"data", method)


async def test_response_without_a_length_is_chunked(stage: Stage, begin: Begin) -> None:
    await begin(sending(200, b"one ", b"two ", MEBI))
    answer = await stage.ask(get())
    assert answer.value(b"Transfer-Encoding") == b"chunked"
    assert answer.body == b"one two " + MEBI


async def test_trailers(stage: Stage, begin: Begin, keeps: KeptParts) -> None:
    """In both directions, as far as the transport keeps them."""

    async def script(play: Play) -> None:
        _, trailers = await play.read()
        await play.head(200, (b"X-Seen", b";".join(name + b"=" + value for name, value in trailers)))
        await play.data(b"body")
        await play.end((b"X-Sum", b"42"))

    await begin(script)
    client = await stage.sending(post_chunked(b"x").removesuffix(b"\r\n") + b"X-Check: 7\r\n\r\n")
    answer = await client.response()
    assert answer.body == b"body"
    assert answer.value(b"X-Seen") == (b"x-check=7" if keeps.request_trailers else b"")
    assert (b"x-sum: 42\r\n" in bytes(client.received).lower()) == keeps.trailers


@pytest.mark.parametrize("status", [200, 201, 203, 301, 400, 404, 418, 429, 500, 504, 599])
async def test_status_is_forwarded(stage: Stage, begin: Begin, keeps: KeptParts, status: int) -> None:
    """No redirect is followed, and no status repeats the request."""
    plays = await begin(sending(status, b"ok", fields=[(b"Location", b"/elsewhere")], length=2))
    answer = await stage.ask(get())
    assert (answer.status, answer.body, len(plays)) == (status, b"ok", 1)
    if keeps.reason:
        assert answer.line.endswith(b" Said So")


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_a_body(stage: Stage, begin: Begin, status: int) -> None:
    """The connection stays usable."""
    await begin(sending(status, fields=[(b"ETag", b'"a"')]))
    client = await stage.client()
    for _ in range(2):
        answer = await client.ask(get())
        assert (answer.status, answer.value(b"ETag"), answer.body) == (status, b'"a"', b"")
        assert answer.value(b"Transfer-Encoding") is None


async def test_interim_response_is_forwarded(stage: Stage, begin: Begin, keeps: KeptParts) -> None:
    async def script(play: Play) -> None:
        await play.interim(103, (b"Link", b"</style.css>"))
        await hello(play)

    await begin(script)
    client = await stage.sending(get())
    if keeps.hints:
        hint = await client.head()
        assert (hint.status, hint.value(b"Link")) == (103, b"</style.css>")
    assert (await client.response()).body == b"hello"


async def test_fields_keep_their_order_and_repetition(stage: Stage, begin: Begin, keeps: KeptParts) -> None:
    """In both directions; the case of names as far as the protocol has it."""
    sent = [(b"X-b", b"1"), (b"X-A", b"2"), (b"x-B", b"3"), (b"X-Empty", b"")]
    if keeps.octets:
        sent.append((b"X-L", b"\xe9"))
    returned = [(b"Set-Cookie", b"a=1"), (b"X-z", b"y"), (b"Set-Cookie", b"b=2"), (b"X-Empty", b"")]
    plays = await begin(sending(200, fields=returned, length=0))
    answer = await stage.ask(get(b"/", *(b"%b: %b" % pair for pair in sent)))
    sent_names = {name.lower() for name, _ in sent}
    assert [pair for pair in plays[0].fields if pair[0] in sent_names] == [(n.lower(), v) for n, v in sent]
    returned_names = {name.lower() for name, _ in returned}
    got = [pair for pair in answer.fields if pair[0].lower() in returned_names]
    assert got == (returned if keeps.case else [(name.lower(), value) for name, value in returned])


# --- concurrency and back-pressure


async def test_hundred_concurrent_requests(stage: Stage, begin: Begin) -> None:
    """Every client gets its own response."""

    async def script(play: Play) -> None:
        await play.read()
        await play.head(200, length=len(play.target))
        await play.data(play.target)
        await play.end()

    plays = await begin(script, timeouts={"connect": 20.0})
    answers = await asyncio.gather(*(stage.ask(get(b"/%d" % i)) for i in range(100)))
    assert [answer.body for answer in answers] == [b"/%d" % i for i in range(100)]
    assert (len(plays), stage.outcomes()) == (100, {"ok": 100})


async def test_client_that_does_not_read_pauses_the_worker(
    stage: Stage, begin: Begin, keeps: KeptParts
) -> None:
    """A bounded part is taken from the worker, others are served meanwhile, and the rest arrives in the end."""
    size = 64
    big = sending(200, *[MEBI] * size, length=size * len(MEBI))

    async def script(play: Play) -> None:
        await (big if play.target == b"/big" else hello)(play)

    plays = await begin(script)
    client = await stage.sending(get(b"/big"), receive_buffer=65_536)
    await client.head()
    before = -1
    while before != plays[0].written:
        before = plays[0].written
        for _ in range(20):
            assert (await stage.ask(get(b"/small"))).body == b"hello"
    assert plays[0].written < keeps.bounded
    for _ in range(size):
        assert await client.exactly(len(MEBI)) == MEBI


async def digest(play: Play) -> None:
    """The digest of the body, which is not sent back: HTTP/2 in Python takes seconds each way."""
    body, _ = await play.read()
    await sending(200, sha256(body).digest(), length=32)(play)


async def test_worker_that_does_not_read_pauses_the_client(stage: Stage, begin: Begin) -> None:
    """A bounded part is taken from the client, and all of it arrives when the worker reads."""
    may_read = asyncio.Event()

    async def script(play: Play) -> None:
        await may_read.wait()
        await digest(play)

    await begin(script)
    client = await stage.client()
    client.patience = 50.0
    body = MEBI * 32
    client.write(post(body))
    before = -1
    while before != client.unsent:
        before = client.unsent
        for _ in range(20):
            await stage.ask(b"GET /-/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.unsent > len(body) // 2
    may_read.set()
    assert (await client.response()).body == sha256(body).digest()


async def test_body_is_received_whole_before_the_worker_is_asked(stage: Stage, begin: Begin) -> None:
    """With buffering; a body of several windows and pieces arrives unchanged."""
    plays = await begin(digest, buffering={"request": 2 * len(MEBI)})
    client = await stage.client()
    request = post(MEBI)
    await client.send(request[:-1])
    await stage.eventually(lambda: stage.cluster.process.buffer_budget.kept == len(MEBI) - 1)
    assert (plays, stage.cluster.router.in_flight) == ([], 0)
    assert (await client.ask(request[-1:])).body == sha256(MEBI).digest()
    budget = stage.cluster.process.buffer_budget
    assert (budget.kept, budget.requests) == (0, 1)


async def test_response_is_taken_over_from_the_worker(stage: Stage, begin: Begin) -> None:
    """With buffering: the request has ended at the worker while the client has read next to nothing."""
    size = 4
    script = sending(200, *[MEBI] * size, length=size * len(MEBI))
    await begin(script, buffering={"response": 2 * size * len(MEBI)})
    client = await stage.sending(get(), receive_buffer=4096)
    await stage.eventually(lambda: stage.outcomes() == {"ok": 1})
    (downstream,) = stage.downstreams
    budget = stage.cluster.process.buffer_budget
    assert (stage.cluster.router.in_flight, stage.pool().leased, budget.responses) == (0, 0, 1)
    assert budget.kept == downstream.transport.get_write_buffer_size() > len(MEBI)
    await client.head()
    for _ in range(size):
        assert await client.exactly(len(MEBI)) == MEBI
    await stage.eventually(lambda: not budget.kept)


# --- failures


async def test_worker_resets_before_the_head(stage: Stage, begin: Begin) -> None:
    """A POST is not repeated; the outcome is "reset"."""

    async def script(play: Play) -> None:
        await play.read()
        play.die()

    plays = await begin(script)
    assert fault_of(await stage.ask(post(b"x")))[:2] == (502, "connection_broken")
    assert len(plays) == 1
    assert stage.outcomes() == {"reset": 1}


async def test_get_is_repeated_after_a_reset(stage: Stage, begin: Begin, keeps: KeptParts) -> None:
    """On a new connection; a library may do so by itself, and then no retry is counted."""
    count = 0

    async def script(play: Play) -> None:
        nonlocal count
        count += 1
        if count == 1:
            play.die()
        else:
            await hello(play)

    await begin(script)
    assert (await stage.ask(get())).body == b"hello"
    assert stage.outcomes() == ({"ok": 1} if keeps.repeats else {"reset": 1, "ok": 1})


async def test_worker_resets_within_the_body(stage: Stage, begin: Begin) -> None:
    """The client's connection ends without a last chunk."""
    is_received = asyncio.Event()

    async def script(play: Play) -> None:
        await play.head(200)
        await play.data(b"begin")
        await is_received.wait()
        play.die()

    await begin(script)
    client = await stage.sending(get())
    assert (await client.head()).status == 200
    await client.until(b"begin\r\n")
    is_received.set()
    await client.closed()
    assert not bytes(client.received).endswith(b"0\r\n\r\n")
    await stage.eventually(lambda: stage.outcomes() == {"reset": 1})


async def test_client_leaves_before_the_response(stage: Stage, begin: Begin) -> None:
    """The outcome is "abandoned", and the next request is served."""
    has_begun = asyncio.Event()

    async def script(play: Play) -> None:
        if play.target == b"/slow":
            has_begun.set()
            await asyncio.Event().wait()
        await hello(play)

    await begin(script)
    client = await stage.sending(get(b"/slow"))
    await has_begun.wait()
    client.reset()
    await stage.eventually(lambda: stage.outcomes() == {"abandoned": 1})
    assert (await stage.ask(get())).body == b"hello"


async def pass_time(stage: Stage, steps: int) -> None:
    """Advance by one interval of checks at a time, and let each check end."""
    for _ in range(steps):
        stage.advance(2.0)
        await stage.eventually(lambda: not stage.control_plane.checks.by_id["w0"].request)


async def test_active_checks(stage: Stage, begin: Begin) -> None:
    """Active checks use the transport, and find a stopped worker unreachable."""
    plays = await begin(hello, health_checks={"path": "/healthz", "interval": 2.0})
    await pass_time(stage, 4)
    assert plays[0].target == b"/healthz"
    assert stage.state().passes_checks
    await stage.started_workers[0].stop()
    await pass_time(stage, 8)
    assert not stage.state().passes_checks
    assert not stage.state().is_reachable


async def test_malformed_response_is_answered_502(stage: Stage, transport: str) -> None:
    """A 502 with a reason in one line."""

    async def script(wire: Wire) -> None:
        await wire.until(
            b"x"
        )  # else aiohttp may find the connection closed with a part of the request unsent
        await wire.send(b"\x15\x03\x01\x00\x02\x02\x46" * 20)

    worker = await stage.worker(script)
    address = f"http://127.0.0.1:{worker.port}"
    await stage.serve(endpoints=[{"id": "w0", "address": address, "transport": transport}], retries=0)
    assert fault_of(await stage.ask(post(b"x")))[:2] == (502, "malformed_response")


async def numbered(play: Play) -> None:
    """A response with as many fields as the target says, with a Content-Length among them if it begins with l."""
    has_length = play.target.startswith(b"/l")
    number = int(play.target[2:]) - (has_length or isinstance(play, Http1))
    await play.head(200, *[(b"X-A", b"b")] * number, length=2 if has_length else None)
    await play.data(b"ok")
    await play.end()


@pytest.mark.parametrize("transport", [one for one in TRANSPORTS if one != "aiohttp"], indirect=True)
async def test_most_fields_of_a_response(stage: Stage, begin: Begin, transport: str) -> None:
    """More are a 502, a failure of the endpoint. aiohttp takes 128, and curl keeps Transfer-Encoding to itself."""
    await begin(numbered, retries=0)
    for target in (b"/l500", b"/c500"):
        assert (await stage.ask(get(target))).body == b"ok"
    for target in (b"/l501", b"/c502" if transport == "curl" else b"/c501"):
        fault = (502, "malformed_response", f"more than {RESPONSE_FIELDS} fields")
        assert fault_of(await stage.ask(get(target))) == fault
    assert stage.outcomes() == {"ok": 2, "reset": 2}
