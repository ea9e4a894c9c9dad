"""Configuration of routes and named clusters: inheritance, messages, warnings, `balancer check`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.cluster.runtime_config import runtime_config_of
from balancer.config.loading import Settings
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.configuration import load
from tests.support.command_line import complaint, run_in_process
from tests.support.config_files import problems, refusals, write

POOLS = """\
[clusters.a]
endpoints = [{ id = "a0", address = "http://a:1" }]
[clusters.b]
endpoints = [{ id = "b0", address = "http://b:1" }]
"""


ROUTE = "[[routes]]\n"
POOL_C = '[clusters.c]\nendpoints = [{ id = "c0", address = "http://c:1" }]\n'
PROBLEMS_OF_A_ROUTE = """
cluster = "c" -> cluster: must be one of a, b, got 'c'
cluster = "default" -> cluster: must be one of a, b, got 'default'
split = { a = 1 } -> split: must name two clusters or more, got 1
split = { a = 0, b = 0 } -> split: one of the weights must be more than 0
split = { a = 1, c = 1 } -> split.c: must be one of a, b, got 'c'
split = { a = 1, b = 1 }; canary = 'c' -> canary: must be one of a, b, got 'c'
cluster = 'a'; canary = 'a' -> canary: needs split
cluster = 'a'; split_key = { by = 'path' } -> split_key: needs split
split = { a = 1, b = 1 }; mirror = { cluster = 'b', share = 1 } ->
    mirror.cluster: needs cluster or split, and must be another one
cluster = 'a'; answer = {} -> cluster: give one of cluster, split, redirect and answer, got cluster and answer
cluster = 'a'; path = '/x'; prefix = '/y' -> prefix: give path or prefix, not both
cluster = 'a'; strip_prefix = true -> strip_prefix: needs prefix and cluster or split
answer = {}; prefix = '/x'; replace_prefix = '/y' -> replace_prefix: needs prefix and cluster or split
cluster = 'a'; prefix = '/x'; replace_prefix = '/y'; strip_prefix = true ->
    replace_prefix: give strip_prefix or replace_prefix, not both
cluster = 'a'; host = 'a.org:80' ->
    host: must be a name such as example.org or *.example.org, without a port, got 'a.org:80'
cluster = 'a'; prefix = '/x/../y' ->
    prefix: must be normalized, '/y': that is what paths of requests are compared as
cluster = 'a'; path = '/x/*' -> path: must not end in '/*': prefix = '/x' takes all paths below it
cluster = 'a'; prefix = '/*' -> prefix: must not end in '/*': prefix = '/' takes all paths below it
cluster = 'a'; headers = { Host = 'x' } -> headers.host: cannot be a condition; a host is given by 'host'
cluster = 'a'; methods = ['GET', 'GET'] -> methods: GET is there twice
redirect = { scheme = 'https' }; scheme = 'https' ->
    redirect: all requests of this route already ask for the scheme https
redirect = { host = 'a.org.:80' }; host = 'a.org' -> redirect: all requests of this route already ask for a.org.:80
redirect = { host = 'A.org', scheme = 'http' }; host = 'a.org'; scheme = 'http' ->
    redirect: all requests of this route already ask for A.org
cluster = 'a'; mirror = { cluster = 'c', share = 0.1 } -> mirror.cluster: must be one of a, b, got 'c'
cluster = 'a'; mirror = { cluster = 'a', share = 0.1 } ->
    mirror.cluster: needs cluster or split, and must be another one
answer = {}; mirror = { cluster = 'a', share = 0.1 } ->
    mirror.cluster: needs cluster or split, and must be another one
cluster = 'a'; mirror = { cluster = 'b' } -> mirror.share: is required
cluster = 'a'; mirror = { cluster = 'b', share = 0 } -> mirror.share: input should be greater than 0, got 0
cluster = 'a'; mirror = { cluster = 'b', share = 10 } ->
    mirror.share: input should be less than or equal to 1, got 10
cluster = 'a'; mirror = { cluster = 'b', share = 1, methods = ['CONNECT'] } ->
    mirror.methods: CONNECT opens a tunnel, which cannot be copied
redirect = { status = 302 } -> redirect: scheme, host, path, replace_prefix: give one of them or more
answer = { status = 204, body = 'x' } -> answer.body: a response with status 204 has none
pool = 'a' -> pool: is not a known key; did you mean 'cluster'?
answer = {}; query = { "" = "1" } -> query.: string should have at least 1 character
answer = {}; clients = ["10.0.0.1/8"] -> clients.0:
redirect = {} -> redirect: scheme, host, path, replace_prefix: give one of them or more
redirect = { path = "/a/../b" } -> redirect.path: must be normalized, '/b'
redirect = { path = "/a", replace_prefix = "/b" } ->
    redirect.replace_prefix: give path or replace_prefix, not both
redirect = { replace_prefix = "/b" } -> redirect.replace_prefix: needs prefix
path = "/a"; redirect = { path = "/a" } -> redirect: all requests of this route already ask for /a
prefix = "/a/"; redirect = { replace_prefix = "/a" } -> redirect: all requests of this route already ask for /a
answer = {}; request_fields = { set = { A = "x" } } -> request_fields: needs cluster or split
cluster = 'a'; response_fields = { set = { Connection = "x" } } ->
    response_fields.set: connection is forwarding's own, got 'Connection'
answer = {}; auth = { cluster = 'b', path = '/x' } -> auth: needs cluster or split
cluster = 'a'; auth = { cluster = 'c', path = '/x' } -> auth.cluster: must be one of a, b, got 'c'
cluster = 'a'; auth = { cluster = 'b', path = 'x' } -> auth.path:
cluster = 'a'; auth = { cluster = 'b', path = '/x', request_fields = ['host'] } ->
    auth.request_fields: 'host' is set by the balancer, and cannot be copied
cluster = 'a'; auth = { cluster = 'b', path = '/x', response_fields = ['Content-Length'] } ->
    auth.response_fields: 'content-length' is set by the balancer
cluster = 'a'; auth = { cluster = 'b', path = '/x', request_fields = ['X-Forwarded-For'] } ->
    auth.request_fields: 'x-forwarded-for' is set by the balancer
cluster = 'a'; auth = { cluster = 'b', path = '/x', cache_by = ['cookie'] } -> auth.cache_by: needs cache
cluster = 'a'; auth = { cluster = 'b', path = '/x', cache = 3601 } -> auth.cache:
cluster = 'a'; auth = { cluster = 'b', path = '/x', timeout = 0 } -> auth.timeout:
"""
OTHER_PROBLEMS = """
[[routes]]; cluster = 'a'; prefix = '/x'; [[routes]]; cluster = 'b'; prefix = '/x/' ->
    routes.1: has the conditions of routes.0, *://*/x/*
[clusters.a.timeouts]; head = 1 ->
    clusters.a.timeouts.head: concerns client connections, which all clusters share; set timeouts.head
[clusters.a.buffering]; total = 1024 ->
    clusters.a.buffering.total: concerns client connections, which all clusters share; set buffering.total
[[routes]]; cluster = 'a'; [clusters.c]; retries = 1 ->
    clusters.c.endpoints: is required: [[endpoints]] once or more, or [discovery]
[[routes]]; cluster = 'a'; [clusters.API-v1]; retries = 1 -> balancer.toml:3: clusters.API-v1.endpoints: is required
pools = {}; [[routes]]; cluster = 'a' -> pools: is not a known key; did you mean 'clusters'?
"""
PROBLEMS = [
    *((ROUTE + text, f"routes.0.{problem}") for text, problem in refusals(PROBLEMS_OF_A_ROUTE)),
    (ROUTE, "routes.0.cluster: give one of cluster, split, redirect and answer, got none"),
    *refusals(OTHER_PROBLEMS),
    (
        f"{ROUTE}cluster = 'a'\nheaders = {{ x = '1' }}\n{ROUTE}cluster = 'b'\nheaders = {{ y = '1' }}",
        "routes.1: and routes.0 are as specific as each other, and a request may match both: *://*/* x=1 and "
        "*://*/* y=1; add a condition to one",
    ),
    (
        f"{ROUTE}cluster = 'a'\nmethods = ['GET', 'PUT']\n{ROUTE}cluster = 'b'\nmethods = ['GET']",
        "routes.1: and routes.0 are as specific as each other, and a request may match both: *://*/* GET,PUT and "
        "*://*/* GET; add a condition to one",
    ),
    (
        f"{ROUTE}cluster = 'a'\n[clusters.c]\n[[clusters.c.endpoints]]\nid = 'c0'\naddress = 'https://c:1'\n"
        "tls.ca = 'none.pem'",
        "balancer.toml:7: clusters.c.endpoints.0.tls.ca: cannot read none.pem",
    ),
    (
        f"upstream_tls.ca = 'none.pem'\n{ROUTE}cluster = 'a'\n{POOL_C.replace('http:', 'https:')}",
        "balancer.toml:1: clusters.c.upstream_tls.ca: cannot read none.pem",
    ),
    (
        f"{ROUTE}cluster = 'a'\n{POOL_C}[clusters.c.limits]\nqueue = -1",
        "clusters.c.limits.queue: input should be greater than or equal to 0, got -1",
    ),
    (f"{ROUTE}cluster = 'a'\n{POOL_C}policy = 'randm'", "clusters.c.policy: unknown policy 'randm'"),
    (
        f"{ROUTE}cluster = 'a'\n{POOL_C}hedgin = 1",
        "clusters.c.hedgin: is not a known key; did you mean 'hedging'?",
    ),
    (
        f"{ROUTE}cluster = 'a'\n{POOL_C}first_byte = 1",
        "clusters.c.first_byte: is not a known key; did you mean clusters.c.timeouts.first_byte?",
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROBLEMS, ids=[expected for _, expected in PROBLEMS])
def test_problems_name_the_route_and_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    lines = problems(write(tmp_path, f"{text}\n{'' if '[clusters.a' in text else POOLS}"))
    assert any(expected in line for line in lines), lines
    assert all(line.startswith("balancer.toml") for line in lines)


def test_problem_of_an_inherited_key_is_reported_once(tmp_path: Path) -> None:
    [line] = problems(write(tmp_path, f"{ROUTE}cluster = 'a'\n[timeouts]\nfirst_byte = -1\n{POOLS}"))
    assert "timeouts.first_byte" in line
    assert "clusters" not in line


def test_a_pool_inherits_key_by_key(tmp_path: Path) -> None:
    """Not endpoints and discovery, nor the options of another policy."""
    text = f"""\
policy = {{ name = "c3", choices = 5 }}
retries = 7
[[endpoints]]
id = "w0"
address = "http://w:1"
[timeouts]
first_byte = 5
connect = 1
[sticky]
header = "X-User"
{ROUTE}cluster = "a"
{POOLS}
[clusters.a.timeouts]
connect = 3
[clusters.a.key]
by = "path"
[clusters.c]
policy = "random"
endpoints = [{{ id = "w0", address = "http://c:1" }}]
[clusters.d]
policy = {{ choices = 6 }}
endpoints = [{{ id = "w0", address = "http://c:1" }}]
"""
    settings = load(write(tmp_path, text), {})
    a, c, d = (settings.clusters[name] for name in "acd")
    assert (a.timeouts.first_byte, a.timeouts.connect, a.retries) == (5, 3, 7)
    assert (a.key.by, a.sticky.header) == ("path", None)
    assert (settings.clusters["b"].sticky.header, settings.clusters["b"].policy.spec) == (
        "X-User",
        settings.policy.spec,
    )
    assert c.policy.spec == {"name": "random"}
    assert d.policy.spec == {"name": "c3", "choices": 6}
    assert [endpoint.id for endpoint in a.endpoints] == ["a0"]
    of_cluster = settings.of_cluster("a")
    assert of_cluster.listen == settings.listen
    assert of_cluster.timeouts.connect == 3
    assert (of_cluster.routes, of_cluster.clusters) == ((), {})


@pytest.mark.parametrize(
    ("top", "own", "expected"),
    [
        ("health_checks.path = '/h'\nhealth_checks.status = 204", "health_checks.grpc = ''", {"grpc": ""}),
        ("health_checks.grpc = ''", "health_checks.path = '/h'", {"path": "/h"}),
        ("health_checks.grpc = ''", "health_checks.status = 204", {"status": 204}),
        ("sticky.cookie = 'c'\nsticky.key = '{}'", "sticky.header = 'x'", {"header": "x"}),
        ("sticky.header = 'x'\nsticky.key = '{}'", "sticky.cookie = 'c'", {"cookie": "c"}),
        ("key.by = 'header'\nkey.name = 'x'", "key.by = 'path'", {"by": "path"}),
        ("key.by = 'header'\nkey.name = 'x'", "key.name = 'y'", {"by": "header", "name": "y"}),
        ("key.by = 'path'", "sticky.header = 'x'", {"header": "x"}),
        ("sticky.header = 'x'", "key.by = 'path'", {"by": "path"}),
    ],
)
def test_a_pool_does_not_inherit_what_its_own_keys_exclude(
    tmp_path: Path, top: str, own: str, expected: dict[str, Any]
) -> None:
    pools = POOLS.replace("[clusters.b]", f"{own}\n[clusters.b]")
    text = f"{top.format('k' * 16)}\n{ROUTE}cluster = 'a'\n{pools}"
    pool = load(write(tmp_path, text), {}).clusters["a"]
    exclusive = {
        "health_checks": {"path", "status", "grpc"},
        "sticky": {"cookie", "header"},
        "key": {"by", "name"},
    }
    found = pool.model_dump(include=exclusive, exclude_none=True)
    assert found == {"health_checks": {}, "sticky": {}, "key": {}} | {own.partition(".")[0]: expected}


def test_every_key_of_a_pool_is_used() -> None:
    """A key that a pool gives is that of its runtime configuration."""
    assert set(ClusterSettings.model_fields) < set(Settings.model_fields)
    document = tomllib.loads(f"{ROUTE}cluster = 'a'\n{POOLS}[clusters.a.limits]\nqueue = 3\n")
    named = runtime_config_of(Settings.model_validate(document)).named
    assert [named[name].settings.limits.queue for name in "ab"] == [3, 10_000]


def test_environment_sets_keys_of_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_CLUSTERS__A__TIMEOUTS__FIRST_BYTE", "3")
    monkeypatch.setenv("BALANCER_CLUSTERS__A__POLICY", "random")
    settings = load(write(tmp_path, f"{ROUTE}cluster = 'a'\n{POOLS}"), {})
    assert (settings.clusters["a"].timeouts.first_byte, settings.clusters["a"].policy.name) == (3, "random")


def test_policy_file_of_a_pool_is_relative_to_the_configuration(tmp_path: Path) -> None:
    text = f"{ROUTE}cluster = 'a'\n{POOLS}".replace("[clusters.b]", '[clusters.b]\npolicy = "mine.py:Mine"')
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, rng): pass\n"
        "    def pick(self, facts, available, now): return available[0]\n"
    )
    settings = load(write(tmp_path, text), {})
    assert settings.clusters["b"].policy.name == f"{tmp_path}/mine.py:Mine"


def test_check_names_the_pool_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, f"{ROUTE}cluster = 'c'\n[clusters.c.discovery]\nfile.path = '{tmp_path}/none'\n")
    line = complaint(main, "balancer", "check", str(path))
    number = path.read_text().splitlines().index(f"file.path = '{tmp_path}/none'") + 1
    assert f"balancer.toml:{number}: clusters.c.discovery.file.path: cannot read" in line


def listed_routes(tmp_path: Path, text: str) -> list[str]:
    """What `balancer check` says of routes, and after them."""
    done = run_in_process(main, "balancer", "check", str(write(tmp_path, text)))
    lines = done.stdout.partition("\nroutes, the most specific first:\n")[2].splitlines()
    return [" ".join(line.split()) for line in lines]


def test_check_lists_routes_and_warns(tmp_path: Path) -> None:
    text = f"""\
{ROUTE}prefix = "/v1"
cluster = "a"
strip_prefix = true
{ROUTE}prefix = "/v1"
methods = ["POST"]
host = "*.example.org"
answer = {{ status = 405 }}
{ROUTE}host = "www.example.org"
scheme = "http"
redirect = {{ scheme = "https" }}
{ROUTE}path = "/-/x"
cluster = "a"
{ROUTE}methods = ["TRACE"]
cluster = "a"
{ROUTE}prefix = "/w"
methods = ["GET"]
cluster = "a"
{ROUTE}prefix = "/w"
methods = ["GET"]
scheme = "http"
cluster = "a"
{ROUTE}prefix = "/w"
methods = ["GET"]
scheme = "https"
cluster = "a"
{POOLS}"""
    assert listed_routes(tmp_path, text) == [
        "http://www.example.org/* redirect 308 to https://*",
        "*://*.example.org/v1/* POST answer 405",
        "*://*/-/x cluster a",
        "*://*/v1/* cluster a, prefix replaced by /",
        "http://*/w/* GET cluster a",
        "https://*/w/* GET cluster a",
        "*://*/w/* GET cluster a",
        "*://*/* TRACE cluster a",
        "anything else 404",
        "warning: routes.3: matches no request: paths under /-/ are those of the admin interface",
        "warning: routes.4: matches no request: TRACE is refused; see http.allow",
        "warning: routes.5: matches no request: routes.6 and routes.7 take both schemes",
        "warning: clusters.b: no route leads to it",
    ]


def test_check_lists_mirrors(tmp_path: Path) -> None:
    """A pool that only gets copies is in use."""
    text = f"""\
{ROUTE}prefix = "/v1"
cluster = "a"
mirror = {{ cluster = "b", share = 0.125 }}
{ROUTE}prefix = "/v2"
methods = ["POST"]
cluster = "a"
strip_prefix = true
mirror = {{ cluster = "b", share = 1 }}
{POOLS}"""
    assert listed_routes(tmp_path, text) == [
        "*://*/v2/* POST cluster a, prefix replaced by /, mirrored to cluster b, share 1",
        "*://*/v1/* cluster a, mirrored to cluster b, share 0.125",
        "anything else 404",
        "warning: routes.1.mirror: copies nothing: none of its methods is one of the route's",
    ]
