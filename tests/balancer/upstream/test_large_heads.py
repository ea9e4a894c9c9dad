"""Large heads of requests to workers over HTTP/2, which may end a connection for one: no other request breaks off."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from tests.support.peers import nginx
from tests.support.scripted_transports import Http2, Play, hello, serve_plays
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, fault_of, get, post, response

COOKIE = b"Cookie: " + b"c" * 20_000
CALM = 11


def has_begun(plays: list[Any], number: int) -> bool:
    return len(plays) >= number


def strict(gate: asyncio.Event, bad: bytes = b"/bad", last: int = 0) -> Any:
    """A script that waits for the gate, and ends the connection for requests for `bad`: its GOAWAY names the stream of
    the request, plus `last`."""

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if play.target == bad:
            goaway = GoAwayFrame(0, last_stream_id=play.stream_id + last, error_code=CALM)
            play.peer.writer.write(goaway.serialize())
            play.peer.writer.close()
            return
        await gate.wait()
        await hello(play)

    return script


async def test_large_head_has_a_connection_of_its_own(stage: Stage) -> None:
    """The worker ends that connection, which is no evidence against it, and the request is not repeated; a POST on
    another one is answered."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, strict(gate))
    victims = [asyncio.ensure_future(stage.ask(post(b"x"))) for _ in range(3)]
    await stage.eventually(partial(has_begun, plays, 3))
    assert fault_of(await stage.ask(get(b"/bad", COOKIE)))[:2] == (502, "connection_broken")
    assert len(plays) == 4
    assert stage.outcomes("w0") == {"abandoned": 1}
    late = asyncio.ensure_future(stage.ask(post(b"x")))
    await stage.eventually(partial(has_begun, plays, 5))
    assert plays[4].wire is plays[0].wire
    gate.set()
    assert [answer.status for answer in await asyncio.gather(*victims, late)] == [200] * 4


async def test_connection_of_a_large_head_is_shared_after_it(stage: Stage) -> None:
    """While it is in use it takes no other request; large heads one after another use the same."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, strict(gate))
    large = asyncio.ensure_future(stage.ask(get(b"/", COOKIE)))
    await stage.eventually(partial(has_begun, plays, 1))
    other = asyncio.ensure_future(stage.ask(get()))
    await stage.eventually(partial(has_begun, plays, 2))
    assert plays[1].wire is not plays[0].wire
    gate.set()
    assert {(await large).status, (await other).status} == {200}
    for fields in ((COOKIE,), (), (COOKIE,)):
        assert (await stage.ask(get(b"/", *fields))).status == 200
    assert stage.pool().counts.opened == 2


async def test_many_large_heads_at_once(stage: Stage) -> None:
    """Each has its connection, and those of small heads behind them share one."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, strict(gate))
    asking = [asyncio.ensure_future(stage.ask(get(b"/", COOKIE))) for _ in range(5)]
    asking += [asyncio.ensure_future(stage.ask(get())) for _ in range(5)]
    await stage.eventually(partial(has_begun, plays, 10))
    assert len({play.wire for play in plays}) == stage.pool().counts.opened == 6
    gate.set()
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.parametrize(("last", "attempts"), [(0, 2), (-2, 2)])
async def test_request_that_has_ended_a_connection_is_repeated_alone(
    stage: Stage, last: int, attempts: int
) -> None:
    """The stream that the worker's GOAWAY with an error names last, and the one behind it: what was repeated with it
    does not break off again."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, strict(gate, last=last))
    victims = [asyncio.ensure_future(stage.ask(get(b"/%d" % number))) for number in range(3)]
    await stage.eventually(partial(has_begun, plays, 3))
    assert fault_of(await stage.ask(get(b"/bad")))[0] == 502
    bad = [play for play in plays if play.target == b"/bad"]
    assert len(bad) == attempts
    assert [play.wire for play in plays].count(bad[-1].wire) == 1
    gate.set()
    assert [answer.status for answer in await asyncio.gather(*victims)] == [200] * 3


async def test_head_above_the_size_that_the_worker_announces(stage: Stage) -> None:
    """It is refused for that request alone, and the worker does not see it."""

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if len(plays) == 1:
            play.peer.h2.update_settings({SettingCodes.MAX_HEADER_LIST_SIZE: 2000})
        await hello(play)

    plays = await serve_plays(stage, script)
    assert (await stage.ask(get())).status == 200
    for size, status in ((1000, 200), (2000, 431)):
        answer = await stage.ask(get(b"/", b"Cookie: " + b"c" * size))
        assert answer.status == status
    assert fault_of(answer) == (431, "head_too_large", "the worker takes at most 2000 bytes of head")
    assert len(plays) == 2
    assert stage.outcomes() == {"ok": 2, "abandoned": 1}
    assert stage.pool().counts.opened == 1


async def test_head_that_one_worker_does_not_take_goes_to_another(stage: Stage) -> None:
    """Also a POST: nothing of it was sent."""

    async def strict_about_heads(play: Play) -> None:
        assert isinstance(play, Http2)
        play.peer.h2.update_settings({SettingCodes.MAX_HEADER_LIST_SIZE: 2000})
        await hello(play)

    large = b"Cookie: " + b"c" * 2000
    await serve_plays(stage, strict_about_heads)
    assert (await stage.ask(get())).status == 200
    other = await stage.worker(response(b"other"))
    endpoints = [*stage.settings.model_dump(exclude_unset=True)["endpoints"], other_endpoint(other)]
    await stage.reload(endpoints=endpoints)
    answers = [await stage.ask(post(b"x", large)) for _ in range(4)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"other")] * 4


def other_endpoint(worker: ScriptedWorker) -> dict[str, str]:
    return {"id": "other", "address": worker.url, "region": "r"}


@pytest.mark.second_tier
@pytest.mark.peer
async def test_nginx(stage: Stage, tmp_path: Path) -> None:
    """nginx ends the connection for a field above 8 KiB."""
    async with nginx(tmp_path, " http2") as port:
        endpoint = {"id": "w0", "address": f"http://127.0.0.1:{port}", "region": "r", "transport": "http2"}
        await stage.serve(endpoints=[endpoint])
        client = await stage.client()
        body = b"x" * 100_000
        put = b"PUT /put/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
        await client.send(put + body[:-1])
        await stage.eventually(lambda: stage.pool().streams == 1)
        assert fault_of(await stage.ask(get(b"/1", COOKIE)))[0] == 502
        await client.send(body[-1:])
        assert (await client.response()).status == 201
        await stage.close()
