"""The Host that workers get, of requests of all kinds and of checks, probes and copies; fields that name endpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.schema.endpoint import EndpointConfig, authority_of
from balancer.http.h1.fields import with_host
from tests.support.admin_requests import local, status
from tests.support.certificates import Shelf
from tests.support.command_line import complaint, run_in_process
from tests.support.config_files import write
from tests.support.dns_discovery import NAME, dns
from tests.support.grpc_plays import ending, serve_grpc
from tests.support.http2_client import http2_client
from tests.support.name_server import NameServer
from tests.support.scripted_transports import TRANSPORTS, Play, hello, over, values
from tests.support.scripts import LATE, SWITCHED, UPGRADE_FIELDS, check
from tests.support.stage import Stage, endpoint, pool_of
from tests.support.wire import (
    Message,
    ScriptedWorker,
    Wire,
    answering,
    answering_after,
    get,
    playing,
    response,
)

APP = "app.example.org"
CLIENT = b"example.org"
"""The Host of `get()`."""


@pytest.mark.parametrize("zone", ["%lo", "%25eth0", ""])
def test_host_of_an_address_has_no_zone(zone: str) -> None:
    """It concerns this machine alone (RFC 6874 § 4)."""
    assert authority_of(f"http://[fe80::1{zone}]:8080") == "[fe80::1]:8080"


def by_name(request: Message) -> bytes:
    """The answer of an ingress that finds apps by their Host."""
    is_known = request.value(b"Host") == APP.encode()
    return response() if is_known else response(b"no such app", status=b"404 Not Found")


def hosts(worker: ScriptedWorker) -> list[bytes | None]:
    return [request.value(b"Host") for request in worker.requests]


NAMED = {
    "request": {"set": {"X-To": "{endpoint}", "X-A": "1"}},
    "response": {"set": {"X-By": "{endpoint}"}},
}
"""Fields that name the endpoint."""


def named(worker: ScriptedWorker) -> list[tuple[bytes | None, ...]]:
    """The Host and the endpoint that each request names."""
    return [(request.value(b"Host"), request.value(b"X-To")) for request in worker.requests]


@pytest.mark.parametrize(
    ("address", "host", "sent"),
    [
        ("http://app.example.org", None, ""),
        ("http://10.0.0.7:8080", None, ""),
        ("https://app.example.org", None, APP),
        ("https://App.Example.org:443/", None, APP),
        ("https://app.example.org:8443", None, f"{APP}:8443"),
        ("https://10.0.0.7", None, ""),
        ("https://[2001:db8::7]:8443", None, ""),
        ("https://bücher.example", None, "xn--bcher-kva.example"),
        ("https://app.example.org", "client", ""),
        ("http://app.example.org:80", "address", APP),
        ("http://app.example.org:8080", "address", f"{APP}:8080"),
        ("http://[2001:db8::7]:80", "address", "[2001:db8::7]"),
        ("https://10.0.0.7:8443", "address", "10.0.0.7:8443"),
        ("https://app.example.org", "other.example.org:81", "other.example.org:81"),
        ("http://10.0.0.7", APP, APP),
    ],
)
def test_host_by_address_and_key(address: str, host: str | None, sent: str) -> None:
    """ "" is that of the client."""
    assert EndpointConfig(id="a", address=address, host=host).endpoint().host == sent.encode()


@pytest.mark.parametrize("line", [b"Host: a", b"host: a", b"HOST:a", b"Host:   a  ", b"hOsT:\ta:80"])
def test_spellings_of_a_host(line: bytes) -> None:
    """The rest of the head stays as it is."""
    before, after = b"GET / HTTP/1.1\r\nA: Host: b\r\n", b"\r\nX-Forwarded-Host: a\r\n\r\n"
    head = with_host(before + line + after, b"new:1")
    assert head[: len(before) + 5].lower() == before.lower() + b"host:"
    assert head.endswith(b"new:1" + after)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_app_found_by_its_name(stage: Stage, transport: str) -> None:
    """Every transport sends the name; X-Forwarded-Host is the client's, whose own Host is in the access log."""
    plays: list[Play] = []
    worker = await stage.start(over(transport, hello, plays))
    await stage.serve(endpoints=[endpoint(worker, transport=transport, host=APP)])
    assert (await stage.ask(get())).status == 200
    client = await http2_client(stage)
    assert (await client.ask()).status == 200
    for play in plays:
        assert values(play.fields, b"host") == [APP.encode()]
        assert values(play.fields, b"x-forwarded-host") in ([CLIENT], [b"localhost"])


async def test_checks_and_requests_agree(stage: Stage) -> None:
    """A check has the Host of requests, so no endpoint is healthy whose requests get 404; also after a reload."""
    worker = await stage.worker(answering(by_name))
    checks = {"path": "/up", "fall": 1}
    await stage.serve(endpoints=[endpoint(worker, host=APP)], health_checks=checks)
    stage.advance(0.0)
    await check(stage)
    assert stage.state().passes_checks
    assert (await stage.ask(get())).status == 200
    pool = stage.pool()
    await stage.reload(endpoints=[endpoint(worker, host="client")])
    await check(stage)
    assert not stage.state().passes_checks
    assert (await stage.ask(get())).status == 404
    assert hosts(worker) == [APP.encode()] * 2 + [b"127.0.0.1:%d" % worker.port, CLIENT]
    assert stage.pool() is pool  # with all that it has learned


async def test_check_by_grpc(stage: Stage) -> None:
    (plays,) = await serve_grpc(stage, ending(0), health_checks={"grpc": ""})
    given = stage.settings.model_dump(exclude_unset=True)["endpoints"][0]
    await stage.reload(endpoints=[{**given, "host": APP}])
    await check(stage)
    assert values(plays[-1].fields, b"host") == [APP.encode()]


async def test_retry_has_host_and_name_of_its_endpoint(stage: Stage) -> None:
    first, second = await stage.worker(response(status=b"503 No")), await stage.worker(response())
    endpoints = [endpoint(first, host="a.example"), endpoint(second, "w1", host="b.example")]
    await stage.serve(endpoints=endpoints, tracing={"enabled": True}, headers=NAMED)
    answer = await stage.ask(get())
    assert (answer.status, answer.value(b"X-By")) == (200, b"w1")
    assert (named(first), named(second)) == ([(b"a.example", b"w0")], [(b"b.example", b"w1")])


async def test_hedge_has_host_and_name_of_its_endpoint(stage: Stage) -> None:
    """Those of the other endpoint, whose Host is the client's."""
    go = asyncio.Event()
    slow, quick = await stage.worker(answering_after(go, response())), await stage.worker(response())
    endpoints = [endpoint(slow, host="a.example"), endpoint(quick, "w1")]
    await stage.serve(endpoints=endpoints, hedging={"enabled": True}, headers=NAMED)
    client = await stage.asking(slow, get())
    await stage.turn()
    stage.advance(LATE)
    answer = await client.response()
    assert (answer.status, answer.value(b"X-By")) == (200, b"w1")
    go.set()
    await stage.eventually(lambda: not stage.state().in_flight)
    assert (named(slow), named(quick)) == ([(b"a.example", b"w0")], [(CLIENT, b"w1")])


async def test_upgrade_has_the_host_and_connect_keeps_its_target(stage: Stage) -> None:
    worker = await stage.worker(playing(Wire.request, SWITCHED, Wire.closed))
    await stage.serve(endpoints=[endpoint(worker, host=APP)], http={"allow": ["CONNECT"]})
    for request in (get(b"/", *UPGRADE_FIELDS), get(b"target:80", method=b"CONNECT")):
        await (await stage.client()).ask(request, to_head=True)
    assert hosts(worker) == [APP.encode(), b"target:80"]


async def test_copies_have_the_host_of_the_mirror(stage: Stage) -> None:
    """And the fields, but not the name of an endpoint, which would be that of the original."""
    main, shadow = await stage.worker(response()), await stage.worker(response())
    cluster = pool_of(shadow)
    cluster["endpoints"][0]["host"] = APP
    mirror = {"cluster": "shadow", "share": 1.0}
    routes = [{"cluster": "default", "mirror": mirror}]
    await stage.serve(main, routes=routes, clusters={"shadow": cluster}, headers=NAMED)
    assert (await stage.ask(get(b"/", b"X-To: forged"))).status == 200
    await stage.eventually(lambda: shadow.requests)
    assert (named(main), named(shadow)) == ([(CLIENT, b"w0")], [(APP.encode(), None)])
    assert shadow.requests[0].value(b"X-A") == b"1"


async def test_endpoint_added_at_run_time(stage: Stage) -> None:
    """The status has the Host; a bad one adds nothing."""
    worker = await stage.worker(answering(by_name))
    await stage.serve(stage.dead_port())
    body = b'{"id": "added", "address": "http://127.0.0.1:%d", "host": "%b"}'
    bad = await stage.ask(local(b"/-/endpoints", method=b"POST", body=body % (worker.port, b"a b")))
    assert (bad.status, b'host: must be \\"client\\", \\"address\\"' in bad.body) == (422, True)
    good = await stage.ask(local(b"/-/endpoints", method=b"POST", body=body % (worker.port, APP.encode())))
    assert good.status == 201
    assert [each["host"] for each in (await status(stage))["endpoints"]] == ["client", APP]
    stage.cluster.router.set_enabled("w0", False)
    assert (await stage.ask(get())).status == 200


@pytest.mark.parametrize(
    ("keys", "sent"), [({}, NAME), ({"host": "client"}, CLIENT), ({"host": APP}, APP)], ids=str
)
async def test_endpoints_from_dns(
    stage: Stage, names: NameServer, tmp_path: Path, keys: dict[str, Any], sent: str | bytes
) -> None:
    """With https the name that is looked up, by default."""
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(), tls=shelf.worker(NAME))
    names.address(NAME, "127.0.0.1")
    source = dns(names, port=worker.port, scheme="https", **keys)
    await stage.serve(discovery={"dns": [source]}, upstream_tls={"ca": str(shelf.ca)})
    assert (await stage.ask(get())).status == 200
    expected = f"{NAME}:{worker.port}".encode() if sent == NAME else sent
    assert hosts(worker) == [expected if isinstance(expected, bytes) else expected.encode()]


CHECKED = """
discovery.file.path = "{file}"
[[endpoints]]
id = "a"
address = "https://app.example.org"
{a}
[[endpoints]]
id = "b"
address = "https://10.0.0.7"
{b}
[clusters.api]
[[clusters.api.discovery.dns]]
name = "api.example.org"
scheme = "https"
port = 443
{dns}
[[routes]]
prefix = "/api"
cluster = "api"
"""
CLIENTS = "the Host is the client's, but the server is"


@pytest.mark.parametrize(
    ("keys", "warnings"),
    [
        ({}, []),
        ({"a": 'host = "address"', "b": 'host = "any"', "dns": 'host = "api.example.org:8443"'}, []),
        ({"a": 'host = "client"'}, [f"endpoints.0.host: {CLIENTS} app.example.org"]),
        ({"a": 'host = "b.org"'}, ["endpoints.0.host: the Host is b.org, but the server is app.example.org"]),
        ({"a": 'host = "b.org"\ntls.server_name = "b.org"'}, []),
        (
            {"b": 'host = "b.org"\ntls.server_name = "c.org"'},
            ["endpoints.1.host: the Host is b.org, but the server is c.org"],
        ),
        ({"dns": 'host = "client"'}, [f"clusters.api.discovery.dns.0.host: {CLIENTS} api.example.org"]),
        ({"file": 'host = "client"'}, [f"discovery.file.endpoints.0.host: {CLIENTS} file.example.org"]),
    ],
    ids=str,
)
def test_check_warns_of_another_name(tmp_path: Path, keys: dict[str, str], warnings: list[str]) -> None:
    of_file = '[[endpoints]]\nid = "c"\naddress = "https://file.example.org"\n' + keys.pop("file", "")
    file = write(tmp_path, of_file).rename(tmp_path / "endpoints.toml")
    path = write(tmp_path, CHECKED.format(**{"a": "", "b": "", "dns": "", "file": file, **keys}))
    done = run_in_process(main, "balancer", "check", str(path))
    lines = [line for line in done.stdout.splitlines() if "warning: " in line]
    assert (done.returncode, done.stderr, len(lines)) == (0, "", len(warnings)), done
    assert all(line.startswith(f"warning: {start}") for line, start in zip(lines, warnings, strict=True))


@pytest.mark.parametrize("host", ["", "a b", "http://a", "a/b", "ä.example", "a:b", "x" * 256])
def test_bad_host(tmp_path: Path, host: str) -> None:
    path = write(tmp_path, CHECKED.format(a=f'host = "{host}"', b="", dns="", file=""))
    found = complaint(main, "balancer", "check", str(path))
    assert 'endpoints.0.host: must be "client", "address" or a name such as app.example.org' in found
