"""Rate limits over real connections: 429 and its fields, whose bucket a request takes from, routes, reload, counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.config.schema.rate_limits import RateLimitConfig
from balancer.http.h1.client import Client
from balancer.rate_limits.limiter import Limiter, RateLimit, TakenTokens
from balancer.rate_limits.request_source import client_of, network_of
from balancer.rate_limits.shared_buckets import WAYS, WORDS, Buckets, SharedBuckets
from policies.overload.token_bucket import ALMOST_ONE_TOKEN
from tests.support.admin_requests import status
from tests.support.outgoing import outgoing_request
from tests.support.stage import Stage, endpoint
from tests.support.token_bucket import Plain
from tests.support.wire import ScriptedWorker, Wire, get, post, response

TWO: dict[str, Any] = {"name": "two", "requests": 2, "period": 10, "everywhere": True}
"""Two requests at once, then one every five seconds."""


async def serve(stage: Stage, *limits: dict[str, Any], **keys: Any) -> ScriptedWorker:
    worker = await stage.worker(response())
    await stage.serve(worker, rate_limits=limits, **keys)
    return worker


async def statuses(client: Wire, *requests: bytes) -> list[int]:
    return [(await client.ask(request)).status for request in requests]


async def test_refusal_has_the_fields_and_the_connection_stays_open(stage: Stage) -> None:
    worker = await serve(stage, TWO)
    client = await stage.client()
    assert await statuses(client, get(), get()) == [200, 200]
    stage.jump(1.0)
    refusal = await client.ask(get())
    assert refusal.line == b"HTTP/1.1 429 Too Many Requests"
    assert refusal.value(b"Retry-After") == b"4"
    assert refusal.value(b"RateLimit-Policy") == b'"two";q=2;w=10'
    assert refusal.value(b"RateLimit") == b'"two";r=0;t=4'
    assert refusal.value(b"Connection") is None
    document = json.loads(refusal.body)
    assert document["error"] == "rate_limited"
    assert document["detail"] == "the rate limit two is used up, retry in 4 s"
    stage.jump(3.9)
    assert (await client.ask(get())).value(b"Retry-After") == b"1"
    stage.jump(0.1)
    assert await statuses(client, get(), get()) == [200, 429]
    assert len(worker.requests) == 3


async def test_body_of_a_refused_request_is_dropped(stage: Stage) -> None:
    """The connection stays open if the body has come, and closes if it has not."""
    worker = await serve(stage, {**TWO, "burst": 1})
    client = await stage.client()
    assert await statuses(client, post(b"one"), post(b"two")) == [200, 429]
    stage.jump(5.0)
    assert await statuses(client, get()) == [200]
    await client.send(get(b"/", b"Content-Length: 10", method=b"POST") + b"12345")
    refusal = await client.response()
    assert (refusal.status, refusal.value(b"Connection")) == (429, b"close")
    assert await client.rest() == b""
    assert [request.body for request in worker.requests] == [b"one", b""]


async def test_pipelined_requests_are_limited_in_order(stage: Stage) -> None:
    await serve(stage, TWO)
    client = await stage.sending(get() * 3 + post(b"x") + get(method=b"HEAD"))
    found = [(await client.response()).status for _ in range(4)]
    assert [*found, (await client.response(to_head=True)).status] == [200, 200, 429, 429, 429]
    stage.jump(5.0)
    assert await statuses(client, get()) == [200]


async def test_connections_of_one_client_share_its_bucket(stage: Stage) -> None:
    await serve(stage, TWO)
    assert [(await stage.ask(get())).status for _ in range(3)] == [200, 200, 429]


def behind_proxy(*addresses: str) -> bytes:
    return get(b"/", *(b"X-Forwarded-For: " + address.encode() for address in addresses))


async def test_clients_behind_a_trusted_proxy_have_their_own_buckets(stage: Stage) -> None:
    """What a client has written into the field itself is of no use to it."""
    await serve(stage, {**TWO, "burst": 1}, trusted_proxies=["127.0.0.1", "10.0.0.0/8"])
    client = await stage.client()
    assert await statuses(client, behind_proxy("192.0.2.1"), behind_proxy("192.0.2.2")) == [200, 200]
    for same in (["192.0.2.1"], ["192.0.2.7, 192.0.2.1, 10.1.1.1"], ["192.0.2.8", "192.0.2.1:4711"]):
        assert await statuses(client, behind_proxy(*same)) == [429], same
    assert await statuses(client, get(), get()) == [200, 429]


@pytest.mark.parametrize("pool", [None, "api"])
async def test_address_that_a_client_chooses_is_no_key(stage: Stage, pool: str | None) -> None:
    """The key is the first address, which the client writes; the last one is that of the client."""
    worker = await stage.worker(response())
    pools = {"api": {"endpoints": [endpoint(worker, "a0")]}} if pool else {}
    routes = [{"prefix": "/", "cluster": pool}] if pool else []
    limit = {**TWO, "burst": 1, "by": "key"}
    given: dict[str, Any] = {
        "key": {"by": "client"},
        "trusted_proxies": ["127.0.0.1"],
        "clusters": pools,
        "routes": routes,
    }
    await stage.serve(worker, rate_limits=[limit], **given)
    client = await stage.client()
    requests = [behind_proxy(f"198.51.100.{at}", "192.0.2.7") for at in range(2)]
    assert await statuses(client, *requests, behind_proxy("192.0.2.8")) == [200, 429, 200]


async def test_trust_changes_with_a_reload(stage: Stage) -> None:
    await serve(stage, {**TWO, "burst": 1})
    client = await stage.client()
    assert await statuses(client, behind_proxy("192.0.2.1"), behind_proxy("192.0.2.2")) == [200, 429]
    await stage.reload(trusted_proxies=["127.0.0.1"])
    assert await statuses(client, behind_proxy("192.0.2.1"), behind_proxy("192.0.2.2")) == [200, 200]
    await stage.reload(trusted_proxies=["127.0.0.1", "192.0.2.2"])
    assert await statuses(client, behind_proxy("192.0.2.1, 192.0.2.2")) == [429]


@pytest.mark.parametrize(
    ("address", "same", "other"),
    [
        ("2001:db8::1", "2001:db8:0:0:ffff::2", "2001:db8:0:1::1"),
        ("[2001:db8::1]:4711", "2001:db8::2", "2001:db9::1"),
        ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
        ("192.0.2.1:80", "192.0.2.1", "192.0.2.1.example"),
        ("unknown", "unknown", "_hidden"),
        ("[]", "[]", "[::1]"),
    ],
)
def test_networks_of_clients(address: str, same: str, other: str) -> None:
    cluster = Client(b"10.0.0.1", b"10.0.0.1:80", is_trusted=True)

    def found(value: str) -> bytes:
        return client_of(outgoing_request(behind_proxy(value), cluster, b"id"), cluster, lambda _: False)

    assert found(address) == found(same) != found(other)
    assert network_of(b"2001:db8::1") == bytes.fromhex("20010db800000000")


async def test_values_of_a_field_have_their_own_buckets(stage: Stage) -> None:
    """Requests without the field count by client, and not as a value that equals an address."""
    await serve(stage, {**TWO, "burst": 1, "by": "header", "header": "X-Api-Key"})
    client = await stage.client()
    keys = [get(b"/", b"x-api-key: " + key) for key in (b"a", b"b", b"a", b"127.0.0.1")]
    assert await statuses(client, *keys) == [200, 200, 429, 200]
    assert await statuses(client, get(), get(b"/", b"X-Api-Key:")) == [200, 429]


@pytest.mark.parametrize("kind", ["header", "key", "sticky"])
async def test_field_beside_the_one_that_a_worker_reads_is_no_way_around(stage: Stage, kind: str) -> None:
    """A request with several values counts by client, in whatever order they are."""
    by: dict[str, Any] = {"by": "header", "header": "X-Api-Key"} if kind == "header" else {"by": "key"}
    keys: dict[str, Any] = {
        "header": {},
        "key": {"key": {"by": "header", "name": "X-Api-Key"}},
        "sticky": {"sticky": {"header": "X-Api-Key"}},
    }
    await serve(stage, {**TWO, **by}, **keys[kind])
    client = await stage.client()
    real, invented = b"X-Api-Key: real", [b"x-api-key: %d" % at for at in range(3)]
    requests = [get(b"/", *pair) for pair in ((invented[0], real), (real, invented[1]), (invented[2], real))]
    assert await statuses(client, *requests, get(b"/", real, real), get(b"/", real, b"X-Api-Key:")) == [
        200,
        200,
        429,
        200,
        200,
    ]
    assert await statuses(client, get(b"/", real)) == [429]


async def test_internal_field_of_a_client_is_no_key(stage: Stage) -> None:
    """The worker does not get it either."""
    limit = {**TWO, "burst": 1, "by": "header", "header": "x-internal-user"}
    await serve(stage, limit, headers={"internal": ["x-internal-*"]})
    client = await stage.client()
    assert await statuses(client, *(get(b"/", b"X-Internal-User: " + user) for user in (b"a", b"b"))) == [
        200,
        429,
    ]


async def test_request_keys_have_their_own_buckets(stage: Stage) -> None:
    await serve(stage, {**TWO, "burst": 1, "by": "key"}, key={"by": "cookie", "name": "user"})
    client = await stage.client()
    users = [get(b"/", b"Cookie: user=" + user) for user in (b"a", b"b", b"a")]
    assert await statuses(client, *users, get(), get()) == [200, 200, 429, 200, 429]


async def test_limit_of_all_is_one_bucket(stage: Stage) -> None:
    await serve(stage, {**TWO, "by": "all"}, trusted_proxies=["127.0.0.1"])
    client = await stage.client()
    assert await statuses(client, *(behind_proxy(f"192.0.2.{at}") for at in range(3))) == [200, 200, 429]


async def test_routes_have_their_limits(stage: Stage) -> None:
    """The limit of the route and the one of all requests must admit; what one refuses takes no token of the other."""
    pool = {"endpoints": [endpoint(await stage.worker(response(b"api")), "a0")]}
    limits: list[dict[str, Any]] = [
        {"name": "all", "requests": 6, "period": 60, "by": "all", "everywhere": True},
        {"name": "api", "requests": 2, "period": 60},
        {"name": "old", "requests": 1, "period": 60},
    ]
    routes: list[dict[str, Any]] = [
        {"prefix": "/api", "cluster": "api", "rate_limit": "api", "strip_prefix": True},
        {"prefix": "/old", "redirect": {"host": "new.org"}, "host": "example.org", "rate_limit": "old"},
        {"path": "/free", "answer": {}},
    ]
    await serve(stage, *limits, routes=routes, clusters={"api": pool})
    client = await stage.client()
    api, old = get(b"/api/x"), get(b"/old")
    assert await statuses(client, api, api, api, api) == [200, 200, 429, 429]
    assert await statuses(client, old, old) == [308, 429]
    assert await statuses(client, get(b"/free"), get(), get()) == [200, 200, 200]
    refusal = await client.ask(get())
    assert refusal.value(b"RateLimit-Policy") == b'"all";q=6;w=60'
    assert (await client.ask(api)).value(b"Retry-After") == b"30", "the longest wait"
    assert (await client.ask(get(b"/-/health"))).status == 200, "admin requests have no limit"
    document = await status(stage)
    assert document["rate_limits"] == [
        {"name": "all", "passed": 6, "denied": 1, "given_away": 0, "elsewhere": 0},
        {"name": "api", "passed": 2, "denied": 3, "given_away": 0, "elsewhere": 0},
        {"name": "old", "passed": 1, "denied": 1, "given_away": 0, "elsewhere": 0},
    ]
    assert document["errors"] == {"rate_limited": 5}
    assert document["responses"]["429"] == 5
    assert document["requests"] == 11, "without that for /-/health"
    [named] = document["clusters"]
    assert (named["requests"], named["errors"]) == (5, {"rate_limited": 3})
    assert "rate_limits" not in named


async def test_request_without_a_route_is_limited(stage: Stage) -> None:
    """404 takes a token like any other answer."""
    routes = [{"path": "/x", "answer": {}}]
    await stage.serve(endpoints=[], routes=routes, rate_limits=[{**TWO, "burst": 1}])
    client = await stage.client()
    assert await statuses(client, get(), get(), get(b"/x")) == [404, 429, 429]


async def test_reload_keeps_the_levels_of_unchanged_limits(stage: Stage) -> None:
    """A changed one begins with full buckets. Connections stay open, and each request is counted by one limit."""
    one = {**TWO, "burst": 1}
    await serve(stage, one)
    client = await stage.client()
    assert await statuses(client, get(), get()) == [200, 429]
    await stage.reload(timeouts={"first_byte": 3})
    assert await statuses(client, get()) == [429]
    await stage.reload(rate_limits=[{"name": "more", "requests": 1, "by": "all", "everywhere": True}, one])
    assert await statuses(client, get()) == [429]
    assert [limit["denied"] for limit in (await status(stage))["rate_limits"]] == [0, 3]
    await stage.reload(rate_limits=[{**one, "requests": 1}])
    assert await statuses(client, get(), get()) == [200, 429]
    await stage.reload(rate_limits=[])
    assert await statuses(client, get(), get()) == [200, 200]
    await stage.reload(rate_limits=[one])
    assert await statuses(client, get()) == [429], "its time has not passed"
    stage.jump(5.0)
    assert await statuses(client, get()) == [200]


def limits_of(shared: SharedBuckets, index: int, *configs: RateLimitConfig) -> tuple[RateLimit, ...]:
    return tuple(
        RateLimit(config, Buckets(shared, index), lambda _: False, TakenTokens()) for config in configs
    )


def is_refused(limits: tuple[RateLimit, ...], now: float, client: int, name: int) -> bool:
    head = get(b"/", b"X-Name: %d" % name)
    one = Client(b"192.0.2.%d" % client, b"127.0.0.1:80")
    return Limiter(limits, lambda: now).refusal(outgoing_request(head, one, b"id"), one) is not None


BY_CLIENT = RateLimitConfig(name="client", requests=10, period=60)
BY_NAME = RateLimitConfig(name="named", requests=2, period=60, by="header", header="X-Name")
LOGIN = RateLimitConfig(name="login", requests=5, period=60)
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 40), st.integers(0, 64), st.booleans()),
    max_size=150,
)


@settings(max_examples=60)
@given(STEPS)
def test_refused_request_changes_nothing(steps: list[tuple[bool, int, int, int, bool]]) -> None:
    """More sources than places, in two processes: no byte of the tables is another one after a refusal.

    Beside buckets without a bound on their number, nothing is refused that those admit, and the same is as long as
    none was given away. So what others are answered does not depend on requests that were refused.
    """
    shared = SharedBuckets(2, 1)
    both = [limits_of(shared, index, BY_CLIENT, BY_NAME) for index in (0, 1)]
    exact: dict[tuple[str, int], Plain] = {}
    now = 1000.0
    for index, client, name, eighths, _ in steps:
        now += eighths / 8
        asked = [
            exact.setdefault((limit.name, source), Plain(limit.tokens, limit.requests / limit.period))
            for limit, source in ((BY_CLIENT, client), (BY_NAME, name))
        ]
        is_given = min(bucket.look(now) for bucket in asked) >= ALMOST_ONE_TOKEN
        before = [table.keys.tobytes() for table in shared.tables]
        if is_refused(both[index], now, client, name):
            assert [table.keys.tobytes() for table in shared.tables] == before
            assert not is_given, "refused although every bucket holds a token"
            continue
        assert is_given or any(limit.given_away for limits in both for limit in limits)
        for bucket in asked:
            bucket.tokens -= 1.0


def test_client_with_invented_keys_keeps_no_other_client_out() -> None:
    """It is refused by the first limit. Others, of this and of another limit, are served as without it."""
    shared = SharedBuckets(1, 4)
    both = limits_of(shared, 0, BY_CLIENT, BY_NAME)
    [login] = limits_of(shared, 0, LOGIN)
    assert sum(not is_refused(both, 1000.0 + at / 1000, 1, at) for at in range(3_000)) == 10
    [table] = shared.tables
    words = table.keys.tolist()
    used = [key for first in range(0, len(words), WORDS) for key in words[first : first + WAYS] if key]
    assert len(used) == 10 + 1, "places of those that were admitted, and of the client"
    assert not any(is_refused((login,), 1003.0, client, 0) for client in range(2, 30))
    assert not any(is_refused(both, 1003.0, client, client) for client in range(2, 6))
    assert is_refused(both, 1003.0, 1, 9_999)


async def test_counts_in_metrics_and_log(stage: Stage, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    await serve(stage, TWO, log={"access": "json", "path": str(log)})
    client = await stage.client()
    await statuses(client, get(), get(b"/a"), get(b"/b"))
    text = (await stage.ask(get(b"/-/metrics"))).body.decode()
    assert 'steelyard_rate_limit_requests_total{limit="two",result="passed"} 2.0' in text
    assert 'steelyard_rate_limit_requests_total{limit="two",result="denied"} 1.0' in text
    assert 'steelyard_errors_total{reason="rate_limited"} 1.0' in text
    await client.close()
    await stage.running.stop()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    entry = next(entry for entry in entries if entry["path"] == "/b")
    assert (entry["end"], entry["status"], entry["reason"]) == ("limited", 429, "rate_limited")


@given(
    st.integers(1, 10**6),
    st.integers(1, 86_400),
    st.integers(1, 1000),
    st.floats(0, 1e7),
    st.lists(st.floats(0, 3), max_size=30),
)
def test_client_that_waits_as_told_is_admitted(
    requests: int, period: int, burst: int, start: float, pauses: list[float]
) -> None:
    """Whatever the limit, the uptime and the requests before."""
    config = RateLimitConfig(name="x", requests=requests, period=period, burst=burst)
    limit = RateLimit(config, Buckets(SharedBuckets(1, 1)), lambda _: False, TakenTokens())
    now = start
    for _ in range(burst):
        assert limit.wait(b"", now) == 0.0
        limit.take(now)
    for pause in pauses:
        now += pause / requests * period
        wait = limit.wait(b"", now)
        if wait:
            now += limit.refusal(wait).retry_after or 0
            assert limit.wait(b"", now) == 0.0
        limit.take(now)
