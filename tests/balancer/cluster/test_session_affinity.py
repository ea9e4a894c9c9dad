"""Session affinity: cookie, attributes, header, and endpoints that become unavailable."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.admin_requests import metrics, status
from tests.support.certificates import Shelf
from tests.support.stage import Stage, endpoint
from tests.support.wire import Message, Wire, get, post, response

KEY = "a key of some length"
COOKIE = {"cookie": "sid", "key": KEY}


async def serve(stage: Stage, workers: int = 3, sticky: Any = COOKIE, **settings: Any) -> None:
    started = [await stage.worker(response(b"%d" % number)) for number in range(workers)]
    await stage.serve(*started, sticky=sticky, **settings)


def cookie_of(answer: Message) -> bytes:
    """name=value, as a browser would send it."""
    value = answer.value(b"Set-Cookie")
    assert value is not None
    return value.split(b";")[0]


def with_cookie(cookie: bytes) -> bytes:
    return get(b"/", b"Cookie: " + cookie)


async def test_cookie_keeps_a_client_at_its_endpoint(stage: Stage) -> None:
    """The cookie is set with the first response and not again while it is valid."""
    await serve(stage)
    first = await stage.ask(get())
    again = [await stage.ask(with_cookie(cookie_of(first))) for _ in range(5)]
    assert {answer.body for answer in again} == {first.body}
    assert {answer.value(b"Set-Cookie") for answer in again} == {None}


async def test_cookie_is_opaque(stage: Stage) -> None:
    """Of fixed length, another value under another key, the same after a restart."""
    await serve(stage)
    values = {cookie_of(await stage.ask(get())) for _ in range(3)}
    assert len(values) == 3
    assert all(re.fullmatch(rb"sid=[0-9a-f]{24}", value) for value in values)
    await stage.reload(sticky={"cookie": "sid", "key": KEY[::-1]})
    assert not values & {cookie_of(await stage.ask(get())) for _ in range(3)}
    await stage.reload(sticky=COOKIE)
    assert values == {cookie_of(await stage.ask(get())) for _ in range(3)}


@pytest.mark.parametrize(
    ("keys", "attributes"),
    [
        ({}, b"; Path=/; HttpOnly; SameSite=Lax"),
        ({"max_age": 60}, b"; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"),
        ({"same_site": "strict", "secure": True}, b"; Path=/; HttpOnly; SameSite=Strict; Secure"),
        ({"same_site": "none", "secure": True}, b"; Path=/; HttpOnly; SameSite=None; Secure"),
    ],
)
async def test_cookie_attributes(stage: Stage, keys: Any, attributes: bytes) -> None:
    await serve(stage, sticky=COOKIE | keys)
    value = (await stage.ask(get())).value(b"Set-Cookie")
    assert value is not None
    assert value[value.index(b";") :] == attributes


async def test_cookie_is_secure_over_tls(stage: Stage, tmp_path: Any) -> None:
    shelf = Shelf(tmp_path)
    await serve(stage, tls=shelf.pair("a.example.org"))
    client = await stage.client(tls=shelf.client(), name="a.example.org")
    value = (await client.ask(get())).value(b"Set-Cookie")
    assert value is not None
    assert value.endswith(b"; Secure")


@pytest.mark.parametrize("cookie", [b"a=1; %b", b"%b; b=2", b"a=1;%b;b=2", b"a=sid=1; %b", b"%b ; c=3"])
async def test_cookie_is_found_among_others(stage: Stage, cookie: bytes) -> None:
    await serve(stage)
    first = await stage.ask(get())
    request_with_cookie = with_cookie(cookie % cookie_of(first))
    assert {(await stage.ask(request_with_cookie)).body for _ in range(4)} == {first.body}


@pytest.mark.parametrize(
    "cookie", [b"sid=", b"sid=x", b"sid=" + b"0" * 24, b"sid=" + b"0" * 25, b"xsid=%b", b"SID=%b"]
)
async def test_invalid_cookie_is_replaced(stage: Stage, cookie: bytes) -> None:
    """The policy picks, and the client gets a valid cookie."""
    await serve(stage)
    good = cookie_of(await stage.ask(get())).partition(b"=")[2]
    request_with_cookie = with_cookie(cookie.replace(b"%b", good))
    answers = [await stage.ask(request_with_cookie) for _ in range(3)]
    assert {answer.body for answer in answers} == {b"0", b"1", b"2"}
    assert all(answer.value(b"Set-Cookie") for answer in answers)


async def test_client_moves_when_its_endpoint_is_disabled(stage: Stage) -> None:
    """The policy picks, and the client gets another cookie."""
    await serve(stage, 2)
    first = await stage.ask(get())
    home = f"w{first.body.decode()}"
    stage.cluster.router.set_enabled(home, False)
    moved = await stage.ask(with_cookie(cookie_of(first)))
    assert moved.body != first.body
    assert (await status(stage))["sticky"] == {"kept": 0, "moved": 1}
    assert 'steelyard_sticky_total{placed="moved"} 1.0' in await metrics(stage)
    stage.cluster.router.set_enabled(home, True)
    assert {(await stage.ask(with_cookie(cookie_of(moved)))).body for _ in range(4)} == {moved.body}


async def test_retry_leaves_the_failed_endpoint(stage: Stage) -> None:
    """The cookie names the endpoint that answered."""
    worker = await stage.serve_worker(response(b"alive"), sticky=COOKIE)
    cookie = cookie_of(await stage.ask(get()))
    dead = {"id": "w0", "address": f"http://127.0.0.1:{stage.dead_port()}"}
    alive = {"id": "w1", "address": f"http://127.0.0.1:{worker.port}"}
    await stage.reload(endpoints=[dead, alive])
    answer = await stage.ask(with_cookie(cookie))
    assert (answer.body, cookie_of(answer) != cookie) == (b"alive", True)


async def test_cookie_in_streamed_and_upgrade_responses(stage: Stage) -> None:
    """In chunked responses and 101, not in interim responses."""

    async def script(wire: Wire) -> None:
        request = await wire.request()
        if b"upgrade" in request.names:
            await wire.send(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
            return
        await wire.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")

    await stage.serve(await stage.worker(script), sticky=COOKIE)
    client = await stage.client()
    hints = await client.ask(post(b"x"))
    assert (hints.status, hints.value(b"Set-Cookie")) == (103, None)
    assert cookie_of(await client.response()).startswith(b"sid=")
    switching = await stage.client()
    answer = await switching.ask(get(b"/", b"Connection: upgrade", b"Upgrade: echo"))
    assert (answer.status, cookie_of(answer)[:4]) == (101, b"sid=")


@pytest.mark.parametrize(
    ("edits", "others"), [({"remove": ["set-cookie"]}, []), ({"set": {"Set-Cookie": "b=2"}}, [b"b=2"])]
)
async def test_edited_fields_are_those_of_the_worker(stage: Stage, edits: Any, others: list[bytes]) -> None:
    """The cookie of the balancer stays when those of workers are removed or replaced."""
    worker = await stage.worker(response(b"x", b"Set-Cookie: a=1"))
    await stage.serve(worker, sticky=COOKIE, headers={"response": edits})
    *found, own = (await stage.ask(get())).values(b"Set-Cookie")
    assert (found, own[:4]) == (others, b"sid=")


async def test_header_keeps_a_client_at_its_endpoint(stage: Stage) -> None:
    """Without the field the policy picks."""
    await serve(stage, sticky={"header": "X-User"})
    homes: dict[bytes, set[bytes]] = {}
    for user in (b"ann", b"bob", b"cid", b"dan", b"eve"):
        for spelt in (b"X-User: " + user, b"x-user:" + user + b" "):
            answer = await stage.ask(get(b"/", spelt))
            assert answer.value(b"Set-Cookie") is None
            homes.setdefault(user, set()).add(answer.body)
    assert {len(found) for found in homes.values()} == {1}
    assert len({next(iter(found)) for found in homes.values()}) > 1
    assert len({(await stage.ask(get())).body for _ in range(3)}) == 3
    assert len({(await stage.ask(get(b"/", b"X-User2: ann"))).body for _ in range(3)}) == 3


async def test_reload_turns_affinity_on_and_off(stage: Stage) -> None:
    """The inner policy keeps its state."""
    await serve(stage, sticky={})
    policy = stage.cluster.router.policy
    assert (await stage.ask(get())).value(b"Set-Cookie") is None
    await stage.reload(sticky=COOKIE)
    assert cookie_of(await stage.ask(get())).startswith(b"sid=")
    await stage.reload(sticky={})
    assert (await stage.ask(get())).value(b"Set-Cookie") is None
    assert stage.cluster.router.policy is policy


async def test_named_clusters_that_inherit_the_cookie_keep_their_clients(stage: Stage) -> None:
    """Each has a cookie of its own, also behind a split; one that gives a name has that."""
    pools: dict[str, Any] = {}
    for name in "abc":
        workers = {each: await stage.worker(response(each.encode())) for each in (f"{name}0", f"{name}1")}
        pools[name] = {"endpoints": [endpoint(worker, each) for each, worker in workers.items()]}
    pools["c"]["sticky"] = {"cookie": "own"}
    routes: list[Any] = [{"prefix": f"/{name}", "cluster": name} for name in pools]
    routes.append({"prefix": "/split", "split": {"a": 1, "b": 1}})
    await serve(stage, clusters=pools, routes=routes)
    jar, bodies = dict[bytes, bytes](), set[bytes]()
    for target in 6 * (b"/", b"/a", b"/b", b"/c", b"/split"):
        answer = await stage.ask(get(target, b"Cookie: " + b"; ".join(map(b"=".join, jar.items()))))
        if answer.value(b"Set-Cookie"):
            cookie, _, token = cookie_of(answer).partition(b"=")
            jar[cookie] = token
        bodies.add(answer.body)
    assert (list(jar), len(bodies)) == ([b"sid", b"sid-a", b"sid-b", b"own"], 4)
