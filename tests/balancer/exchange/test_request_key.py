"""The key of a request: from a header, cookie, path or client address, as policies get it."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.cluster.affinity import key_of
from balancer.config.schema.sticky import KeyConfig
from balancer.http.h1.client import Client
from tests.support.outgoing import outgoing_request
from tests.support.stage import Stage
from tests.support.wire import get, response


def key(raw: bytes, by: Any, name: str | None = None, *, is_trusted: bool = False) -> str | None:
    """The key of a request with these bytes."""
    client = Client(b"192.0.2.1", b"127.0.0.1:80", is_trusted=is_trusted)
    of = key_of(KeyConfig(by=by, name=name))
    assert of is not None
    return of(outgoing_request(raw, client, b"X-Request-ID: 1\r\n"), client)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ((b"X-User: anna",), "anna"),
        ((b"x-user:   anna b. \t ",), "anna b."),
        ((b"X-User: anna", b"x-user: anna ", b"X-User:"), "anna"),
        ((b"X-User: anna", b"X-User: bert"), None),
        ((b"X-User:",), None),
        ((b"X-Users: anna", b"A-X-User: anna"), None),
        ((), None),
    ],
)
def test_key_from_a_header(fields: tuple[bytes, ...], found: str | None) -> None:
    """Any case, without surrounding white space; an empty value is no key, and neither are different ones."""
    assert key(get(b"/", *fields), "header", "X-User") == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ((b"Cookie: sid=abc",), "abc"),
        ((b"Cookie: a=b; sid=abc; c=d",), "abc"),
        ((b"Cookie: xsid=1; SID=2",), None),
        ((b"Cookie: sid=",), None),
        ((b"X-Cookie: sid=abc",), None),
    ],
)
def test_key_from_a_cookie(fields: tuple[bytes, ...], found: str | None) -> None:
    """The name must match exactly."""
    assert key(get(b"/", *fields), "cookie", "sid") == found


def test_key_from_one_of_many_cookies() -> None:
    """As many as a browser keeps for a site, but not behind thousands without a value, which cost time to search."""
    assert key(get(b"/", b"Cookie: " + b"x-sid=1; " * 180 + b"sid=abc"), "cookie", "sid") == "abc"
    assert key(get(b"/", b"Cookie: " + b"sid=; " * 1300 + b"sid=abc"), "cookie", "sid") is None


def test_key_from_the_path_without_query() -> None:
    assert key(get(b"/a/b?c=d"), "path") == key(get(b"/a/b"), "path") == "/a/b"


def test_key_from_the_client_address() -> None:
    """The peer address, or the first address from a trusted proxy."""
    forwarded = get(b"/", b"X-Forwarded-For: 198.51.100.7 , 10.0.0.1")
    assert key(forwarded, "client") == "192.0.2.1"
    assert key(forwarded, "client", is_trusted=True) == "198.51.100.7"
    assert key(get(b"/"), "client", is_trusted=True) == "192.0.2.1"


def test_no_key_by_default() -> None:
    assert key_of(KeyConfig()) is None


async def test_same_key_goes_to_the_same_endpoint(stage: Stage) -> None:
    """All endpoints get some keys; a reloaded setting holds from the next request."""
    workers = [await stage.worker(response(b"%d" % number)) for number in range(3)]
    await stage.serve(
        *workers, policy={"name": "maglev", "table": 251}, key={"by": "header", "name": "X-User"}
    )
    found = {}
    for number in range(20):
        ask = get(b"/", b"X-User: user-%d" % number)
        bodies = {(await stage.ask(ask)).body for _ in range(3)}
        assert len(bodies) == 1
        found[number] = bodies.pop()
    assert set(found.values()) == {b"0", b"1", b"2"}
    await stage.reload(policy={"name": "maglev", "table": 251}, key={"by": "path"})
    assert len({(await stage.ask(get(b"/x", b"X-User: %d" % number))).body for number in range(9)}) == 1
