"""What a reload replaces is freed: no kind of section leaves an object behind for each reload."""

from __future__ import annotations

import asyncio
import gc
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import clear_cache  # type: ignore[attr-defined] # typeshed lacks it

import pytest

from balancer.downstream.timeouts import Sweep
from benchmarks.harness.open_load import without_collections
from tests.support.certificates import Shelf
from tests.support.config_files import table
from tests.support.http2_client import WEBSOCKET, http2_client
from tests.support.name_server import NameServer
from tests.support.scripts import SWITCHED, UPGRADE_FIELDS
from tests.support.stage import Stage
from tests.support.wire import Wire, get, response

WARM_UP = 8


def at(address: str, name: str = "n0") -> dict[str, Any]:
    return {"endpoints": [{"id": name, "address": address, "region": "r"}]}


FOUND, SECURE = at("http://127.0.0.1:1"), at("https://127.0.0.1:1")

NOT_OURS = {
    "export": {
        *("builtins.function", "builtins.tuple", "builtins.cell"),
        *("weakref.ReferenceType", "weakref.WeakMethod"),
    },
    "pools-by-dns": {"builtins.tuple"},
}
"""Types by section. Batch processors of the SDK register themselves with `os.register_at_fork`, which has no way back:
a few weak references each, for each change of the collector. The name server of the test keeps what it was asked."""

FREED = (".ControlPlane", ".SSLContext", ".UpstreamConnection", ".Exchange", ".Http2Stream")

Section = Callable[[int, Path], dict[str, Any]]


def named(pool: dict[str, Any]) -> Section:
    return lambda turn, _: {
        "clusters": {f"p{turn}": pool},
        "routes": [{"prefix": "/", "cluster": f"p{turn}"}],
    }


def discovered(turn: int, folder: Path) -> dict[str, Any]:
    path = folder / f"{turn}.toml"
    path.write_text(table(1, f"f{turn}"))
    return {"discovery": {"file": {"path": str(path)}}}


def by_name(folder: Path) -> dict[str, Any]:
    """A name server that answers: one that refuses leaves a cycle in aiodns on CPython 3.13, which is not ours."""
    return {"name": "a.b", "port": 1, "servers": [(folder / "name server").read_text()]}


def logged(turn: int, folder: Path) -> dict[str, Any]:
    return {"log": {"access": "json", "path": str(folder / f"{turn}.log")}}


WITH_ALL: dict[str, Any] = {
    **{"hedging": {"enabled": True}, "health_checks": {"path": "/"}, "load_probes": {"path": "/"}},
    **{"sticky": {"header": "X-User"}, "concurrency": {"adaptive": True}, "policy": "prequal"},
}
LIMIT = {"requests": 9, "period": 1, "everywhere": True}
MIRROR = {"cluster": "default", "mirror": {"cluster": "next", "share": 0.5}}

SECTIONS: dict[str, Section] = {
    "clusters": named(FOUND),
    "https-pools": named(SECURE),
    "pools-logged": lambda turn, folder: logged(0, folder) | named(FOUND)(turn, folder),
    "pools-with-all": named(FOUND | WITH_ALL),
    "pools-explained": lambda *turn: {"explain": {"enabled": True}} | named(FOUND)(*turn),
    "pools-recorded": lambda *turn: {"record": {"enabled": True, "path": "/dev/null"}} | named(FOUND)(*turn),
    "pools-shared": lambda *turn: {"shared": {"url": "redis://127.0.0.1:1"}} | named(FOUND)(*turn),
    "pools-by-dns": lambda turn, folder: named({"discovery": {"dns": [by_name(folder)]}})(turn, folder),
    "pools-by-file": lambda turn, folder: {"clusters": {f"p{turn}": discovered(turn, folder)}},
    "discovery": discovered,
    "routes": lambda turn, _: {"routes": [{"prefix": f"/{turn}", "answer": {"status": 200}}]},
    "rate_limits": lambda turn, _: {"rate_limits": [LIMIT | {"name": f"l{turn}"}]},
    "mirrors": lambda turn, _: {"clusters": {"next": FOUND}, "routes": [MIRROR | {"prefix": f"/{turn}"}]},
    "policy": lambda turn, _: {"policy": ("steelyard", "maglev", "peak-ewma")[turn % 3]},
    "policies-by-prompt": lambda turn, _: {
        "policy": ("pending-tokens", "cache-aware", "prefix-chunks")[turn % 3]
    },
    "tls": lambda turn, folder: {"tls": Shelf(folder).pair(f"h{turn}.test")},
    "upstream_tls": lambda turn, _: {"upstream_tls": {"server_name": f"h{turn}.test"}, **SECURE},
    "tracing": lambda turn, _: {"tracing": {"enabled": True, "sample": 1 / (turn + 1)}},
    "export": lambda turn, _: {"tracing": {"endpoint": "http://127.0.0.1:1", "service": f"s{turn}"}},
    "log": logged,
    "health": lambda turn, _: FOUND | {"health_checks": {"path": f"/{turn}"}},
    "admission": lambda turn, _: {"admission": {"header": f"X-{turn}"}},
    "sticky": lambda n, _: {"sticky": {"header": f"X-{n}"}, "outlier_detection": {"failures": n + 1}},
    "key": lambda turn, _: {"key": {"by": "header", "name": f"X-{turn}"}},
    "headers": lambda turn, _: {"headers": {"internal": [f"x-{turn}-*"]}},
    "hedging": lambda turn, _: {"hedging": {"enabled": turn % 2 == 0}},
    "explain": lambda turn, _: {"explain": {"enabled": True, "header": f"X-{turn}"}},
    "record": lambda turn, folder: {"record": {"enabled": True, "path": str(folder / f"{turn}.rec")}},
    "names": lambda turn, _: {"names": {"resolver": "dns", "ttl": turn + 2.0, "servers": ["127.0.0.1:1"]}},
    "limits": lambda turn, _: {"limits": {"head": 9000 + turn}, "http2": {"max_streams": turn + 1}},
    "buffering": lambda turn, _: {"buffering": {"request": turn + 1, "response": turn + 1}},
    "endpoints": lambda turn, _: at(f"http://127.0.0.1:{turn + 1}", f"e{turn}"),
    "admin": lambda turn, _: {"admin": {"token": f"sixteen-or-more-{turn}"}},
}


OFTEN = [pytest.mark.second_tier, pytest.mark.timeout(300)]
IN_FIRST_TIER = (
    *(
        "clusters",
        "pools-with-all",
        "pools-shared",
        "discovery",
        "rate_limits",
        "mirrors",
        "policy",
        "tls",
        "upstream_tls",
    ),
    *("export", "log", "health", "sticky", "record", "endpoints"),
)


@pytest.mark.no_cover  # on CPython 3.13 it keeps an object for each new code object
@pytest.mark.parametrize(
    ("name", "reloads"),
    [
        *((name, 12) for name in IN_FIRST_TIER),
        *(pytest.param(name, 300, marks=OFTEN) for name in SECTIONS),
    ],
)
async def test_replaced_section_is_freed(
    stage: Stage, names: NameServer, tmp_path: Path, name: str, reloads: int
) -> None:
    """No type of object grows by one per reload, although the garbage collector, which would hold up all requests, does
    not run. What exists after the start is frozen, as in a serving process."""
    section = SECTIONS[name]
    names.address("a.b", "127.0.0.1")
    (tmp_path / "name server").write_text(f"127.0.0.1:{names.port}")
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # no threads are added later
    first = section(0, tmp_path)
    workers = () if "endpoints" in first else (await stage.worker(response()),)
    await stage.serve(*workers, **first)
    with without_collections():
        await play(stage, section, tmp_path, range(1, WARM_UP))
        before = counted(name)
        await play(stage, section, tmp_path, range(WARM_UP, WARM_UP + reloads))
        for _ in range(50):
            grown = grown_since(before, reloads, name)
            if not grown:
                break
            await asyncio.sleep(0.1)  # the log's thread takes over new outputs by itself
    assert grown == {}


def grown_since(before: Counter[str], reloads: int, name: str) -> dict[str, int]:
    """Types of which at least every other reload left an object."""
    after = counted(name)
    grown = {kind: number for kind in after if (number := after[kind] - before[kind]) >= reloads // 2}
    return {kind: number for kind, number in grown.items() if kind not in NOT_OURS.get(name, ())}


@pytest.mark.parametrize("kind", ["refused", "plain", "answered", "tunnelled", "http2"])
async def test_removed_pool_does_not_wait_for_the_collector(stage: Stage, tmp_path: Path, kind: str) -> None:
    """Nor its TLS contexts, whose 860 KiB the collector does not know of. Connects fail, refused or in the handshake
    with a plain worker, or the pool has an idle connection or a tunnel, of a connection or of a stream."""
    shelf = Shelf(tmp_path)
    worker = await stage.worker(switching, None if kind == "plain" else shelf.worker("127.0.0.1"))
    address = f"https://127.0.0.1:{1 if kind == 'refused' else worker.port}"
    section = named(at(address) | {"upstream_tls": {"ca": str(shelf.ca)}})
    await stage.serve(1, health_checks={}, **section(0, tmp_path))
    with without_collections():
        for turn in range(1, 12):
            await ask(stage, kind)
            await play(stage, section, tmp_path, range(turn, turn + 1))
            for client in stage.clients:
                client.reset()
        await play(stage, section, tmp_path, range(12, 14))
        await stage.eventually(lambda: max(n for one, n in counted("").items() if one.endswith(FREED)) == 1)


async def switching(wire: Wire) -> None:
    while request := await wire.request():
        await wire.send(SWITCHED if request.value(b"Upgrade") else response())


async def ask(stage: Stage, kind: str) -> None:
    """Send a request, and wait until it is answered."""
    if kind == "http2":
        client = await http2_client(stage)
        stream = client.begin(WEBSOCKET)
        await client.until(lambda: client.answers[stream].head)
    elif kind in ("answered", "tunnelled"):
        await (await stage.client()).ask(get(b"/", *(UPGRADE_FIELDS if kind == "tunnelled" else ())))


async def play(stage: Stage, section: Section, folder: Path, turns: range) -> None:
    """Reload the configuration of each turn, with the sweeps after it. Endpoints are found before they are replaced: a
    query of aiodns that is cancelled leaves a cycle, which is not ours."""
    for turn in turns:
        await stage.reload(**section(turn, folder))
        await stage.eventually(lambda: all(cluster.router.states for cluster in stage.running.clusters))
        for _ in range(2):
            stage.clock.at += 1.0
            list(Sweep(stage.cluster.process, stage.running._look).slices(stage.clock.at))
            await stage.turn(8)


def counted(section: str) -> Counter[str]:
    """Return the number of objects by type, without bounded caches of the standard library and cycles of the SDK."""
    re.purge()
    clear_cache()
    if section == "export":
        gc.collect()
    found = Counter[
        str
    ]()  # given the names, it would ask an abstract class, which then keeps weak references
    for one in gc.get_objects():
        found[f"{type(one).__module__}.{type(one).__qualname__}"] += 1
    return found
