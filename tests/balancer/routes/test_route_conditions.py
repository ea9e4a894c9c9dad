"""Which of all routes for a place a request matches: a table of conditions by query, client network, field, method and
scheme, and their priorities."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from random import Random
from typing import Any

import pytest

from balancer.config.schema.routes import RouteConfig, listed
from balancer.errors import AmbiguousPath
from balancer.routes.conditions import MAX_PARAMETERS, parameters_of
from balancer.syntax.networks import NetworkSet
from tests.support.expressions import IS_COMPILED
from tests.support.line_counts import steps
from tests.support.route_tables import NamedRoutes, check_in_any_order, request_of

ROUTES: dict[str, dict[str, Any]] = {
    "root": {"prefix": "/"},
    # query
    "v1": {"prefix": "/q", "query": {"version": "1"}},
    "v2": {"prefix": "/q", "query": {"version": "2"}},
    "v2-beta": {"prefix": "/q", "query": {"version": "2", "beta": "*"}},
    "v*-gamma": {"prefix": "/g", "query": {"version": "*", "gamma": ""}},
    "word": {"prefix": "/w", "query": {"q": "a b&c=d+e"}},
    "umlaut": {"prefix": "/u", "query": {"größe": "ß"}},
    "exact": {"path": "/q/exact"},
    "exact-v2": {"path": "/q/exact", "query": {"version": "2"}},
    "deep": {"prefix": "/q/deep"},
    # client networks
    "inside": {"prefix": "/c", "clients": ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8"]},
    "one": {"prefix": "/c", "clients": ["203.0.113.7"]},
    "nobody-else": {"prefix": "/c/only", "clients": ["198.51.100.0/25"]},
    "outside": {"prefix": "/c"},
    "all-four": {"prefix": "/c/all", "clients": ["0.0.0.0/0"]},
    "all-six": {"prefix": "/c/all", "clients": ["::/0"]},
    # priorities: field, query, method, scheme, client
    "p-none": {"prefix": "/p"},
    "p-client": {"prefix": "/p", "clients": ["10.0.0.0/8"]},
    "p-scheme": {"prefix": "/p", "scheme": "https"},
    "p-scheme-client": {"prefix": "/p", "scheme": "https", "clients": ["10.0.0.0/8"]},
    "p-method": {"prefix": "/p", "methods": ["PUT", "POST"]},
    "p-method-scheme": {"prefix": "/p", "methods": ["PUT"], "scheme": "https"},
    "p-query": {"prefix": "/p", "query": {"a": "1"}},
    "p-query-client": {"prefix": "/p", "query": {"a": "1"}, "clients": ["10.0.0.0/8"]},
    "p-query-method": {"prefix": "/p", "query": {"a": "1"}, "methods": ["PUT"]},
    "p-two-queries": {"prefix": "/p", "query": {"a": "1", "b": "*"}},
    "p-field": {"prefix": "/p", "headers": {"x-a": "1"}},
    "p-field-query": {"prefix": "/p", "headers": {"x-a": "1"}, "query": {"a": "1"}},
    "p-two-fields": {"prefix": "/p", "headers": {"x-a": "1", "x-b": "*"}},
    # a more specific host or path is taken although it has fewer conditions
    "h-any": {"host": "h.org", "prefix": "/p"},
    "h-query": {"host": "h.org", "prefix": "/p", "query": {"a": "1"}},
    "s-many": {"host": "*.h.org", "prefix": "/p/x", "query": {"a": "1"}, "clients": ["10.0.0.0/8"]},
    # redirects, which do not match requests that are there
    "to-path": {"prefix": "/r", "redirect": {"path": "/r/new"}},
    "to-prefix": {"prefix": "/old", "redirect": {"replace_prefix": "/new"}},
    "to-longer": {"prefix": "/l", "redirect": {"replace_prefix": "/l/en"}},
    "to-root": {"prefix": "/strip", "redirect": {"replace_prefix": "/"}},
    "to-host": {"prefix": "/r/h", "redirect": {"host": "new.org", "path": "/r/h/x"}},
}

CASES = [
    # query
    ("GET /q", "root"),
    ("GET /q?version", "root"),
    ("GET /q?version=1", "v1"),
    ("GET /q?version=2", "v2"),
    ("GET /q?version=3", "root"),
    ("GET /q?version=22", "root"),
    ("GET /q?Version=2", "root"),
    ("GET /q?xversion=2", "root"),
    ("GET /q/sub?version=2", "v2"),
    ("GET /q?a=b&version=2", "v2"),
    ("GET /q?version=2&&", "v2"),
    ("GET /q?version=2;a=b", "root"),
    ("GET /q?version=3&version=2", "v2"),
    ("GET /q?ver%73ion=%32", "v2"),
    ("GET /q?version=%252", "root"),
    ("GET /q?version=2%00", "root"),
    ("GET /q?beta", "root"),
    ("GET /q?beta&version=2", "v2-beta"),
    ("GET /q?beta=1&version=2", "v2-beta"),
    ("GET /q?beta=1&version=1", "v1"),
    ("GET /g?gamma&version=9", "v*-gamma"),
    ("GET /g?gamma=1&version=9", "root"),
    ("GET /g?gamma&version", "v*-gamma"),
    ("GET /w?q=a+b%26c=d%2Be", "word"),
    ("GET /w?q=a%20b%26c%3Dd%2be", "word"),
    ("GET /w?q=a+b&c=d+e", "root"),
    ("GET /u?gr%C3%B6%C3%9Fe=%C3%9F", "umlaut"),
    ("GET /u?gr%F6%DFe=%DF", "root"),
    ("GET /q/exact", "exact"),
    ("GET /q/exact?version=1", "exact"),
    ("GET /q/exact?version=2", "exact-v2"),
    ("GET /q/exact/x?version=2", "v2"),
    ("GET /q/deep?version=2", "deep"),
    ("GET /x/../q?version=2", "v2"),
    ("OPTIONS *", "root"),
    # client networks
    ("GET /c from 10.0.0.1", "inside"),
    ("GET /c from 10.255.255.255", "inside"),
    ("GET /c from 11.0.0.0", "outside"),
    ("GET /c from 9.255.255.255", "outside"),
    ("GET /c from 192.168.3.4", "inside"),
    ("GET /c from 192.169.0.0", "outside"),
    ("GET /c from fd12::1", "inside"),
    ("GET /c from fe80::1", "outside"),
    ("GET /c from ::ffff:10.1.2.3", "inside"),
    ("GET /c from 203.0.113.7", "one"),
    ("GET /c from 203.0.113.8", "outside"),
    ("GET /c from unknown", "outside"),
    ("GET /c/only from 198.51.100.127", "nobody-else"),
    ("GET /c/only from 198.51.100.128", "outside"),
    ("GET /c/only from 10.0.0.1", "inside"),
    ("GET /c/all from 192.0.2.1", "all-four"),
    ("GET /c/all from 2001:db8::1", "all-six"),
    ("GET /c/all from unknown", "outside"),
    # the address that a trusted proxy states, 172.16.0.0/12
    ("GET /c from 172.16.0.1 X-Forwarded-For=10.0.0.1", "inside"),
    ("GET /c from 172.16.0.1 X-Forwarded-For=10.0.0.1,192.0.2.1", "outside"),
    ("GET /c from 172.16.0.1 X-Forwarded-For=10.0.0.1,172.16.0.9", "inside"),
    ("GET /c from 172.16.0.1 X-Forwarded-For=10.0.0.1:4711", "inside"),
    ("GET /c from 172.16.0.1 X-Forwarded-For=[fd12::1]:4711", "inside"),
    ("GET /c from 172.16.0.1 X-Forwarded-For=_hidden", "outside"),
    ("GET /c from 172.16.0.1", "outside"),
    ("GET /c from 192.0.2.1 X-Forwarded-For=10.0.0.1", "outside"),
    # priorities
    ("GET /p", "p-none"),
    ("GET /p from 10.0.0.1", "p-client"),
    ("GET /p https", "p-scheme"),
    ("GET /p https from 10.0.0.1", "p-scheme-client"),
    ("POST /p https from 10.0.0.1", "p-method"),
    ("PUT /p https from 10.0.0.1", "p-method-scheme"),
    ("PUT /p", "p-method"),
    ("GET /p?a=1 https", "p-query"),
    ("GET /p?a=1 https from 10.0.0.1", "p-query-client"),
    ("PUT /p?a=1 https from 10.0.0.1", "p-query-method"),
    ("PUT /p?a=1&b from 10.0.0.1", "p-two-queries"),
    ("GET /p x-a=1 from 10.0.0.1", "p-field"),
    ("PUT /p?a=1&b x-a=1", "p-field-query"),
    ("PUT /p?a=2&b x-a=1", "p-field"),
    ("PUT /p?a=1&b x-a=1 x-b=0", "p-two-fields"),
    ("PUT /p?a=1&b x-a=2 x-b=0", "p-two-queries"),
    ("GET /p x-a=1 at h.org", "h-any"),
    ("GET /p?a=1&b x-a=1 at h.org", "h-query"),
    ("GET /p/x?a=1 x-a=1 from 10.0.0.1 at a.h.org", "s-many"),
    ("GET /p/x?a=1 x-a=1 from 11.0.0.1 at a.h.org", "p-field-query"),
    # redirects
    ("GET /r", "to-path"),
    ("GET /r/new", "root"),
    ("GET /r/./new?x=1", "root"),
    ("GET /r/new/x", "to-path"),
    ("GET /r/h/y", "to-host"),
    ("GET /r/h/x", "to-host"),
    ("GET /r/h/x at new.org", "to-path"),
    ("GET /r/h/y at new.org:8080", "to-host"),
    ("GET /old/new", "to-prefix"),
    ("GET /l", "to-longer"),
    ("GET /l/english", "to-longer"),
    ("GET /l/en", "root"),
    ("GET /l/en/x", "root"),
    ("GET /strip/strip", "to-root"),
]


def test_the_most_specific_route_is_taken_in_any_order() -> None:
    check_in_any_order(ROUTES, CASES)


def test_parameter_that_is_there_twice_may_match_two_routes_of_one_rank() -> None:
    """The first one is taken."""
    assert NamedRoutes(ROUTES).found("GET /q?version=1&version=2") == "v1"


# --- the number of routes


@pytest.mark.skipif(IS_COMPILED, reason="the lines of compiled code are not counted")
@pytest.mark.parametrize("condition", ["query", "headers"])
def test_search_does_not_grow_with_the_routes_of_a_place(condition: str) -> None:
    """Hundreds of routes that want another value each."""

    def search(number: int) -> int:
        routes = NamedRoutes({
            str(at): {"prefix": "/", condition: {"x-a": str(at)}} for at in range(number)
        })  # fmt: skip
        line = f"GET /?x-a={number - 1} x-a={number - 1}"
        assert routes.found(line) == str(number - 1)
        asked = request_of(line)
        return steps(lambda: routes.table.find(*asked))

    assert search(300) == search(2)


@pytest.mark.skipif(IS_COMPILED, reason="the lines of compiled code are not counted")
def test_search_does_not_grow_with_the_networks_of_a_route() -> None:
    def search(number: int) -> int:
        networks = [f"10.{at // 256}.{at % 256}.0/24" for at in range(number)]
        table = NamedRoutes({"a": {"prefix": "/", "clients": networks}}).table
        asked = request_of("GET / from 192.0.2.1")
        table.find(*asked)  # the address is parsed once
        return steps(lambda: table.find(*asked))

    assert search(1000) == search(1)


# --- parts


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/", {b"": [b""]}),
        (b"/?a=1&b=2&a=3", {b"a": [b"1", b"3"], b"b": [b"2"]}),
        (b"/?a=1?b=2", {b"a": [b"1?b=2"]}),
        (b"/?a==1", {b"a": [b"=1"]}),
        (b"/?%61=%zz+", {b"a": [b"%zz "]}),
        (b"/?a%3Db=c%26d", {b"a=b": [b"c&d"]}),
    ],
)
def test_parameters(target: bytes, expected: dict[bytes, list[bytes]]) -> None:
    assert parameters_of(target) == expected


def test_more_parameters_than_are_compared_are_refused() -> None:
    """To ignore some would be a way around routes that protect."""
    most = b"&".join(b"a%d=1" % n for n in range(MAX_PARAMETERS))
    assert len(parameters_of(b"/?" + most)) == MAX_PARAMETERS
    with pytest.raises(AmbiguousPath, match="more than 64 parameters"):
        parameters_of(b"/?" + most + b"&v=2")


def test_networks() -> None:
    """As the standard library decides it."""
    rng = Random(3)
    networks = [
        ip_network((rng.getrandbits(32) if four else rng.getrandbits(128), rng.randrange(33)), strict=False)
        for four in (True, False)
        for _ in range(30)
    ]
    found = NetworkSet(networks)
    for _ in range(500):
        network = rng.choice(networks)
        address = network.network_address + rng.getrandbits(4)
        for peer in (address, ip_address(rng.getrandbits(32))):
            expected = any(peer in each for each in networks)
            assert found.has(peer) == expected, peer
    assert not found.has(None)


# --- routes that are refused

AMBIGUOUS = [
    ({"query": {"a": "1"}}, {"query": {"b": "1"}}, True),
    ({"query": {"a": "1"}}, {"query": {"a": "2"}}, False),
    ({"query": {"a": "1"}}, {"query": {"a": "*"}}, True),
    ({"query": {"a": "1"}}, {"query": {"a": "1", "b": "*"}}, False),
    ({"query": {"a": "1"}}, {"headers": {"a": "1"}}, False),
    ({"query": {"a": "1"}}, {"query": {"b": "1"}, "clients": ["10.0.0.0/8"]}, False),
    ({"clients": ["10.0.0.0/8"]}, {"clients": ["11.0.0.0/8"]}, False),
    ({"clients": ["10.0.0.0/8"]}, {"clients": ["11.0.0.0/8", "10.1.0.0/16"]}, True),
    ({"clients": ["10.0.0.0/8"]}, {"clients": ["::/0"]}, False),
    ({"clients": ["10.0.0.0/8"], "methods": ["GET"]}, {"clients": ["10.0.0.0/8"], "methods": ["PUT"]}, False),
]


@pytest.mark.parametrize(("one", "other", "is_ambiguous"), AMBIGUOUS)
def test_ambiguous_routes(one: dict[str, Any], other: dict[str, Any], is_ambiguous: bool) -> None:
    for first, second in ((one, other), (other, one)):
        if is_ambiguous:
            with pytest.raises(ValueError, match="as specific as each other"):
                NamedRoutes({"a": first, "b": second})
        else:
            NamedRoutes({"a": first, "b": second})


def test_check_lists_conditions_and_redirects() -> None:
    routes = [
        RouteConfig.model_validate(keys)
        for keys in (
            {
                "prefix": "/a",
                "query": {"v": "2", "b": "*"},
                "clients": ["10.0.0.0/8"],
                "redirect": {"path": "/b"},
            },
            {"prefix": "/a", "redirect": {"scheme": "https", "replace_prefix": "/"}},
        )
    ]
    assert [line.split() for line in listed(routes, has_default=True)][1:3] == [
        ["*://*/a/*?v=2&b=*", "from", "10.0.0.0/8", "redirect", "308", "to", "/b"],
        ["*://*/a/*", "redirect", "308", "to", "https://*/*"],
    ]
