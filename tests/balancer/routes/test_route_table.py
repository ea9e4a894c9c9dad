"""Which route a request matches: a table of cases, the independence of the order, and the time of a search."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.config.schema.routes import RouteConfig
from balancer.config.schema.sections import NormaliseConfig
from balancer.http.h1.client import Client
from balancer.routes.route import Route
from balancer.routes.table import RouteTable
from balancer.syntax.urls import normalized
from tests.support.expressions import IS_COMPILED
from tests.support.line_counts import steps
from tests.support.outgoing import outgoing_request
from tests.support.route_tables import NamedRoutes, check_in_any_order, request_of

ROUTES: dict[str, dict[str, Any]] = {
    "root": {"prefix": "/"},
    "v1": {"prefix": "/v1"},
    "v1-users": {"prefix": "/v1/users/"},
    "v1-status": {"path": "/v1/status"},
    "v1-posts": {"prefix": "/v1", "methods": ["POST", "PUT"]},
    "v1-beta": {"prefix": "/v1", "headers": {"x-beta": "*"}},
    "v1-beta-gold": {"prefix": "/v1", "headers": {"x-beta": "1", "x-tier": "gold"}},
    "v1-beta-posts": {"prefix": "/v1", "headers": {"x-beta": "*"}, "methods": ["POST"]},
    "v1-plain": {"prefix": "/v1", "scheme": "http", "methods": ["DELETE"]},
    "api": {"host": "api.example.org"},
    "api-v1": {"host": "api.example.org", "prefix": "/v1"},
    "api-exact": {"host": "api.example.org", "path": "/"},
    "api-reads": {"host": "api.example.org", "prefix": "/reads", "methods": ["GET", "HEAD"]},
    "example": {"host": "*.example.org"},
    "deep": {"host": "*.deep.example.org", "prefix": "/a"},
    "six": {"host": "[2001:DB8:0::1]"},
    "encoded": {"prefix": "/a%2Fb"},
    "admin": {"prefix": "/admin"},
}

CASES = [
    # path
    ("GET /", "root"),
    ("GET /other", "root"),
    ("GET /v1", "v1"),
    ("GET /v1/", "v1"),
    ("GET /v1?x=/v1/users", "v1"),
    ("GET /v1/x", "v1"),
    ("GET /v10", "root"),
    ("GET /v", "root"),
    ("GET /V1", "root"),
    ("GET /v1/users", "v1-users"),
    ("GET /v1/users/", "v1-users"),
    ("GET /v1/users/7/posts", "v1-users"),
    ("GET /v1/users7", "v1"),
    ("GET /v1/status", "v1-status"),
    ("GET /v1/status?x=1", "v1-status"),
    ("GET /v1/status/", "v1"),
    ("GET /v1/status/x", "v1"),
    # what a worker may take for another path
    ("GET //v1//users", "v1-users"),
    ("GET /x/../v1", "v1"),
    ("GET /v1/../x", "root"),
    ("GET /v1/./users", "v1-users"),
    ("GET /v1/users/..", "v1"),
    ("GET /../../v1", "v1"),
    ("GET /%76%31", "v1"),
    ("GET /x/%2e%2E/admin", "admin"),
    ("GET /%61dmin", "admin"),
    ("GET /.admin", "root"),
    ("GET /a%2fb", "encoded"),
    ("GET /a%2Fb/c", "encoded"),
    ("GET /a/b", "root"),
    ("GET /admin%00", "root"),
    ("GET http://api.example.org/v1/x", "api-v1"),
    ("GET http://any.org", "root"),
    ("OPTIONS *", "root"),
    ("OPTIONS * at api.example.org", "api"),
    # method
    ("POST /v1/x", "v1-posts"),
    ("PUT /v1", "v1-posts"),
    ("PATCH /v1", "v1"),
    ("POST /v1/users", "v1-users"),
    ("DELETE /v1", "v1-plain"),
    ("DELETE /v1 https", "v1"),
    ("GET /reads at api.example.org", "api-reads"),
    ("HEAD /reads/x at api.example.org", "api-reads"),
    ("POST /reads at api.example.org", "api"),
    # fields
    ("GET /v1 x-beta=0", "v1-beta"),
    ("GET /v1 x-beta=1", "v1-beta"),
    ("GET /v1 X-BETA=1", "v1-beta"),
    ("GET /v1 x-tier=gold", "v1"),
    ("GET /v1 x-beta=1 x-tier=gold", "v1-beta-gold"),
    ("GET /v1 x-beta=1 x-tier=Gold", "v1-beta"),
    ("GET /v1 x-beta=0 x-beta=1 x-tier=gold", "v1-beta-gold"),
    ("GET /v1 x-betas=1", "v1"),
    ("POST /v1 x-beta=1", "v1-beta-posts"),
    ("POST /v1 x-beta=1 x-tier=gold", "v1-beta-gold"),
    # host
    ("GET / at api.example.org", "api-exact"),
    ("GET /x at API.Example.ORG:8443", "api"),
    ("GET /x at api.example.org.", "api"),
    ("GET /x at www.example.org", "example"),
    ("GET /x at a.b.example.org", "example"),
    ("GET /x at example.org", "root"),
    ("GET /x at badexample.org", "root"),
    ("GET /a/b at x.deep.example.org", "deep"),
    ("GET /b at x.deep.example.org", "example"),
    ("GET /a at deep.example.org", "example"),
    ("GET /v1 at www.example.org", "example"),
    ("GET / at [2001:db8::1]:8080", "six"),
    ("GET / at [2001:db8:0:0::1]", "six"),
    ("GET / at [::1]:8080", "root"),
    ("GET / at [::1::]", "root"),
    ("GET /v1 at 127.0.0.1:8080", "v1"),
]


KEPT = NormaliseConfig(encoded_slash="keep", nul="keep")


def test_the_most_specific_route_is_taken_in_any_order() -> None:
    check_in_any_order(ROUTES, CASES, KEPT)


def routes_of(*names: str) -> NamedRoutes:
    return NamedRoutes({name: ROUTES[name] for name in names}, KEPT)


def test_no_route_matches() -> None:
    routes = routes_of("api-v1", "deep")
    assert routes.found("GET / at api.example.org") is None
    assert routes.found("GET /a at other.org") is None


PATHS = st.lists(
    st.sampled_from([b"a", b"b", b".", b"..", b"", b"%2e", b"%2E%2e", b"%61", b"%2f", b"a.b"]), min_size=1
).map(lambda segments: b"/" + b"/".join(segments))


@given(PATHS)
def test_normalized_paths_stay_the_same(path: bytes) -> None:
    once = normalized(path)
    assert normalized(once) == once
    assert once.startswith(b"/")
    assert not {b".", b"..", b""} & set(once.split(b"/")[1:-1])
    assert b"%2e" not in once.lower()


class CountingPath(bytes):
    """A path that counts the searches for its segments: each precedes the lookup of one prefix."""

    searches = 0

    def rfind(self, *arguments: Any) -> int:
        self.searches += 1
        return super().rfind(*arguments)


def test_search_does_not_grow_with_the_path() -> None:
    """A path of thousands of segments costs no more lookups than the longest prefix has segments."""
    request, client = request_of("GET " + "/x" * 4000)
    request.target = path = CountingPath(request.target)
    assert routes_of("v1-users").table.find(request, client) is None
    assert path.searches == 5  # for /x/x/x/x, which is shorter than /v1/users, down to the root


@pytest.mark.skipif(IS_COMPILED, reason="the lines of compiled code are not counted")
def test_search_does_not_grow_with_the_host() -> None:
    """A host of many labels costs no more lookups than the longest suffix has labels."""
    routes = routes_of("example", "deep")

    def search(labels: int) -> int:
        asked = request_of(f"GET /a at {'x.' * labels}example.org")
        return steps(lambda: routes.table.find(*asked))

    assert search(120) == search(3)
    assert routes.found(f"GET /a at {'x.' * 100}deep.example.org") == "deep"


HOSTS = [None, "a.org", "*.org"]
SCHEMES = [None, "http", "https"]


def test_no_redirect_leads_to_itself() -> None:
    """A route is refused only if no request matches it. A client that follows it arrives at the next route, also if a
    proxy in front leaves out the port or states no scheme."""
    for keys in product(HOSTS, SCHEMES, [None, "a.org", "A.org:8443", "b.org"], SCHEMES):
        if keys[2:] != (None, None):
            check_redirect(*keys)


def check_redirect(host: str | None, scheme: str | None, to_host: str | None, to_scheme: str | None) -> None:
    """Check one redirect for requests of all hosts and schemes. Raises AssertionError."""
    never = to_scheme in (None, scheme) and (to_host is None or (host or "") == to_host.split(":")[0].lower())
    condition = {"path": "/x", "host": host, "scheme": scheme}
    keys = {"redirect": {"host": to_host, "scheme": to_scheme}, **condition}
    if never:
        with pytest.raises(ValueError, match="all requests of this route already ask for"):
            RouteConfig.model_validate(keys)
        return
    config = RouteConfig.model_validate(keys)
    table = RouteTable()
    table.replace([(config, Route(config, None))], has_default=True)
    matched = [_lands(table, "https", "a.org", b""), _lands(table, "gopher", "b.org", b"")]
    for begin in ("http", "https"):
        for asked in ("a.org", "b.org", "c.org:80", "x.net"):
            matched += [_lands(table, begin, asked, port) for port in (b"", b":8443")]
    assert any(matched)


def _lands(table: RouteTable, scheme: str, host: str, port: bytes) -> bool:
    """Follow the redirects of a request until it matches none; return whether there was one."""
    client = Client(b"192.0.2.7", b"", is_trusted=True)
    at, authority = scheme.encode(), host.encode() + (port if ":" not in host else b"")
    for hop in range(4):
        lines = b"GET /x HTTP/1.1\r\nHost: %b\r\nX-Forwarded-Proto: %b\r\n\r\n" % (authority, at)
        request = outgoing_request(lines, client, b"id")
        route = table.find(request, client)
        if route is None:
            return hop > 0
        location = route.response(request)[1].removeprefix(b"Location: ").removesuffix(b"/x\r\n")
        to, _, authority = location.partition(b"//")
        at = at if scheme == "gopher" else (to or at).removesuffix(b":")
        authority = authority if port else authority.partition(b":")[0]
    raise AssertionError(f"{scheme}://{host} loops: {location!r}")


@pytest.mark.parametrize("path", ["%61" * 65, "a" + "/.." * 65, "%e4a" * 65], ids=["codes", "dots", "small"])
def test_paths_with_too_much_to_replace(path: str) -> None:
    """Refused where a route matches by path, and only there."""
    with pytest.raises(ValueError, match="has more than 64"):
        normalized(b"/" + path.encode())


@pytest.mark.parametrize(
    "text", ["%E4%B8%AD" * 400, "%e4%b8%ad" * 400, "%C3%A9a" * 400, "%20" * 300 + "%61" * 64]
)
def test_long_encoded_text_is_normalized(text: str) -> None:
    path = normalized(b"/" + text.encode())
    assert path.startswith(b"/%")
    assert b"%e4" not in path
    assert b"%61" not in path
