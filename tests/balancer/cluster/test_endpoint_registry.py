"""Commands under /-/endpoints: add, drain, change weight, remove, and invalid commands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.admin_requests import command, local, status
from tests.support.certificates import Shelf
from tests.support.scripts import holding, patient
from tests.support.stage import Stage, endpoint, traffic
from tests.support.wire import ScriptedWorker, get, post, response


async def bodies(stage: Stage, times: int) -> list[bytes]:
    return sorted([(await stage.ask(get())).body for _ in range(times)])


async def test_added_endpoint_takes_requests(stage: Stage) -> None:
    await stage.serve(await stage.worker(response(b"old")))
    fresh = await stage.worker(response(b"new"))
    code, document = await command(
        stage, "POST", "/-/endpoints", endpoint(fresh, "fresh", weight=3, max_in_flight=7)
    )
    assert (code, document["id"], document["weight"], document["max_in_flight"]) == (201, "fresh", 3, 7)
    assert (document["source"], document["state"], document["available"]) == ("command", "ready", True)
    assert await command(stage, "GET", "/-/endpoints/fresh") == (200, (await status(stage))["endpoints"][1])
    assert await bodies(stage, 4) == [b"new"] * 3 + [b"old"]


async def test_added_endpoint_serves_waiting_requests(stage: Stage) -> None:
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker, max_in_flight=1)
    first, second = await stage.client(), await stage.client()
    for client in (first, second):
        await client.send(get())
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    await command(stage, "POST", "/-/endpoints", endpoint(await stage.worker(response(b"new")), "fresh"))
    assert (await second.response()).body == b"new"
    go.set()
    assert (await first.response()).body == b"held"


@pytest.mark.parametrize("state", ["drain", "maintenance"])
async def test_drained_endpoint_gets_no_requests(stage: Stage, state: str) -> None:
    """Requests in flight finish, and after "ready" it serves again with its statistics."""
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker, await stage.worker(response(b"other")))
    client = await stage.asking(worker, get())
    code, document = await command(stage, "PATCH", "/-/endpoints/w0", {"state": state})
    assert (code, document["state"], document["available"], document["in_flight"]) == (200, state, False, 1)
    assert await bodies(stage, 3) == [b"other"] * 3
    go.set()
    assert (await client.response()).body == b"held"
    assert (await command(stage, "PUT", "/-/endpoints/w0", {"state": "ready"}))[1]["available"]
    assert await bodies(stage, 2) == [b"held", b"other"]
    assert stage.outcomes("w0") == {"ok": 2}


async def test_maintenance_closes_idle_connections(stage: Stage) -> None:
    """ "drain" keeps them."""
    await stage.serve(await stage.worker(response()))
    await stage.ask(get())
    await command(stage, "PATCH", "/-/endpoints/w0", {"state": "drain"})
    assert stage.pool().idle == 1
    await command(stage, "PATCH", "/-/endpoints/w0", {"state": "maintenance"})
    assert stage.pool().idle == 0


async def test_admin_state_survives_other_commands_and_reload(stage: Stage) -> None:
    one, two = await stage.worker(response(b"one")), await stage.worker(response(b"two"))
    await stage.serve(one, two)
    await command(stage, "PATCH", "/-/endpoints/w0", {"state": "maintenance"})
    await command(stage, "POST", "/-/endpoints", endpoint(one, "w2"))
    await command(stage, "DELETE", "/-/endpoints/w2")
    await stage.reload(retries=0)
    assert await bodies(stage, 2) == [b"two"] * 2


async def test_weight_set_by_command(stage: Stage) -> None:
    """Until a reload."""
    await stage.serve(await stage.worker(response(b"0")), await stage.worker(response(b"1")))
    code, document = await command(stage, "PATCH", "/-/endpoints/w1", {"weight": 3})
    assert (code, document["weight"]) == (200, 3)
    assert await bodies(stage, 4) == [b"0"] + [b"1"] * 3
    await stage.reload()
    assert stage.state("w1").weight == 1


async def test_removed_endpoint_finishes_its_requests(stage: Stage) -> None:
    """Its request in flight finishes, and counts again if the endpoint is added again."""
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker, await stage.worker(response(b"other")))
    client = await stage.asking(worker, post(b"once"))
    assert await command(stage, "DELETE", "/-/endpoints/w0") == (200, {"id": "w0", "in_flight": 1})
    leaving = [{"id": "w0", "address": f"http://127.0.0.1:{worker.port}", "in_flight": 1}]
    assert (await command(stage, "GET", "/-/endpoints"))[1]["leaving"] == leaving
    assert await bodies(stage, 2) == [b"other"] * 2
    assert (await command(stage, "POST", "/-/endpoints", endpoint(worker)))[1]["in_flight"] == 1
    go.set()
    assert (await client.response()).body == b"held"
    assert (await command(stage, "GET", "/-/endpoints"))[1]["leaving"] == []
    assert len(worker.requests) == 1


async def test_remove_while_dialling(stage: Stage) -> None:
    """The waiting request goes elsewhere."""
    await stage.serve(stage.deaf_port(), await stage.worker(response(b"other")), timeouts={"connect": 0.5})
    client = await stage.sending(get())
    await stage.eventually(lambda: stage.pool().opening)
    assert (await command(stage, "DELETE", "/-/endpoints/w0"))[1]["in_flight"] == 1
    assert (await client.response()).body == b"other"


async def test_last_endpoint_can_be_removed(stage: Stage) -> None:
    """Requests and the health check are answered 503 then."""
    worker = await stage.serve_worker(response())
    await command(stage, "DELETE", "/-/endpoints/w0")
    assert (await stage.ask(get())).status == 503
    assert (await stage.ask(local(b"/-/health"))).status == 503
    assert (await command(stage, "POST", "/-/endpoints", endpoint(worker, "again")))[0] == 201
    assert (await stage.ask(get())).status == 200


async def test_reload_merges_endpoints_added_by_command(stage: Stage) -> None:
    """Configured endpoints follow the configuration, others stay until they are removed."""
    one, two = await stage.worker(response(b"one")), await stage.worker(response(b"two"))
    await stage.serve(one)
    await command(stage, "POST", "/-/endpoints", endpoint(two, "extra"))
    await command(stage, "POST", "/-/endpoints", endpoint(two, "w1", weight=9))
    await command(stage, "DELETE", "/-/endpoints/w0")
    await stage.reload(endpoints=[endpoint(one, "w0"), endpoint(one, "w1")])
    listed = (await command(stage, "GET", "/-/endpoints"))[1]["endpoints"]
    assert [(each["id"], each["source"], each["weight"]) for each in listed] == [
        ("w0", "configuration", 1),
        ("w1", "configuration", 1),
        ("extra", "command", 1),
    ]
    assert await bodies(stage, 3) == [b"one", b"one", b"two"]


BAD: dict[str, tuple[str, str, Any, int, list[str]]] = {
    "not JSON": ("POST", "", b"{", 400, ["not JSON"]),
    "not an object": ("POST", "", [1], 422, ["object", "[1]"]),
    "no address": ("POST", "", {"id": "a"}, 422, ["address", "required"]),
    "bad address": ("POST", "", {"id": "a", "address": "a:1"}, 422, ["address", "http://host:port", "a:1"]),
    "bad id": ("POST", "", {"id": "a b", "address": "http://a:1"}, 422, ["id", "a b"]),
    "unknown key": ("POST", "", {"id": "a", "address": "http://a:1", "wight": 2}, 422, ["wight", "known"]),
    "id taken": ("POST", "", {"id": "w0", "address": "http://a:1"}, 409, ["id", "w0", "configuration"]),
    "no such file": (
        "POST",
        "",
        {"id": "a", "address": "https://a:1", "tls": {"ca": "/none.pem"}},
        422,
        ["tls.ca", "/none.pem"],
    ),
    "unknown to patch": ("PATCH", "/w9", {"state": "ready"}, 404, ["w9", "known: w0"]),
    "unknown to remove": ("DELETE", "/w9", None, 404, ["w9", "known: w0"]),
    "unknown to get": ("GET", "/w9", None, 404, ["w9", "known: w0"]),
    "bad state": (
        "PATCH",
        "/w0",
        {"state": "away"},
        422,
        ["state", "ready", "drain", "maintenance", "away"],
    ),
    "zero weight": ("PATCH", "/w0", {"weight": 0}, 422, ["weight", "0"]),
    "infinite weight": ("PATCH", "/w0", b'{"weight": Infinity}', 422, ["weight"]),
    "no change": ("PATCH", "/w0", {}, 422, ["state", "weight"]),
    "fixed key": ("PATCH", "/w0", {"address": "http://a:1"}, 422, ["address", "known"]),
}


@pytest.mark.parametrize("case", BAD)
async def test_invalid_command_changes_nothing(stage: Stage, case: str) -> None:
    """One line with the field and the allowed values."""
    await stage.serve(await stage.worker(response()))
    method, target, body, code, words = BAD[case]
    before = stage.control_plane.registry.members
    answered, document = await command(stage, method, f"/-/endpoints{target}", body)
    assert (answered, list(document)) == (code, ["error"])
    assert "\n" not in document["error"]
    assert not [word for word in words if word not in document["error"]], document
    assert stage.control_plane.registry.members == before
    assert (await stage.ask(get())).status == 200


async def test_https_endpoint_added_by_command(stage: Stage, tmp_path: Any) -> None:
    """The added endpoint brings its own CA, which a reload keeps."""
    shelf = Shelf(tmp_path)
    secure = await stage.worker(response(b"secure"), tls=shelf.worker("127.0.0.1"))
    await stage.serve(await stage.worker(response(b"plain")))
    body = {"id": "s", "address": f"https://127.0.0.1:{secure.port}", "tls": {"ca": str(shelf.ca)}}
    assert (await command(stage, "POST", "/-/endpoints", body))[0] == 201
    assert await bodies(stage, 2) == [b"plain", b"secure"]
    await stage.reload(pool={"max_age": 1})
    stage.advance(10)
    assert await bodies(stage, 2) == [b"plain", b"secure"]


async def test_commands_under_load_fail_no_request(stage: Stage) -> None:
    """Two of three workers are drained, removed, added and weighted in turns, while GETs and POSTs pass."""
    workers = [await stage.worker(patient(b"%d" % number)) for number in range(3)]
    await stage.serve(*workers)
    async with traffic(stage) as (answers, pass_requests):
        for turn in range(8):
            name, worker = f"w{1 + turn % 2}", workers[1 + turn % 2]
            for method, target, body in steps(name, worker):
                assert (await command(stage, method, f"/-/endpoints{target}", body))[0] < 300
                await pass_requests()
    assert sum(len(worker.requests) for worker in workers) == len(answers)


def steps(name: str, worker: ScriptedWorker) -> list[tuple[str, str, Any]]:
    return [
        ("PATCH", f"/{name}", {"state": "drain"}),
        ("DELETE", f"/{name}", None),
        ("POST", "", endpoint(worker, name)),
        ("PATCH", f"/{name}", {"state": "maintenance", "weight": 5}),
        ("PATCH", f"/{name}", {"state": "ready"}),
    ]
