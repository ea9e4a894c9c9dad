"""What a reload replaces is freed: no kind of section leaves an object behind for each reload."""

from __future__ import annotations

import asyncio
import gc
import re
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import clear_cache  # type: ignore[attr-defined] # typeshed lacks it

import pytest

from balancer.control_plane import ControlPlane
from balancer.downstream.timeouts import Sweep
from tests.balancer.certificates import Shelf
from tests.balancer.conftest import Stage, response
from tests.balancer.test_discovery_file import table

WARM_UP = 8


def at(address: str, name: str = "n0") -> dict[str, Any]:
    return {"endpoints": [{"id": name, "address": address, "region": "r"}]}


FOUND, SECURE = at("http://127.0.0.1:1"), at("https://127.0.0.1:1")

OF_THE_SDK = {
    *("builtins.function", "builtins.tuple", "builtins.cell", "weakref.ReferenceType", "weakref.WeakMethod")
}
"""Batch processors register themselves with `os.register_at_fork`, which has no way back: a few weak references each,
for each change of the collector."""

Section = Callable[[int, Path], dict[str, Any]]


def named(pool: dict[str, Any]) -> Section:
    return lambda turn, _: {"pools": {f"p{turn}": pool}, "routes": [{"prefix": "/p", "pool": f"p{turn}"}]}


def discovered(turn: int, folder: Path) -> dict[str, Any]:
    path = folder / f"{turn}.toml"
    path.write_text(table(1, f"f{turn}"))
    return {"discovery": {"file": {"path": str(path)}}}


def logged(turn: int, folder: Path) -> dict[str, Any]:
    return {"log": {"access": "json", "path": str(folder / f"{turn}.log")}}


WITH_ALL: dict[str, Any] = {
    **{"hedging": {"enabled": True}, "health_checks": {"path": "/"}, "load_probes": {"path": "/"}},
    **{"sticky": {"header": "X-User"}, "concurrency": {"adaptive": True}, "policy": "prequal"},
}
LIMIT = {"requests": 9, "period": 1, "everywhere": True}
MIRROR = {"pool": "default", "mirror": {"pool": "next", "share": 0.5}}

SECTIONS: dict[str, Section] = {
    "pools": named(FOUND),
    "https-pools": named(SECURE),
    "pools-logged": lambda turn, folder: logged(0, folder) | named(FOUND)(turn, folder),
    "pools-with-all": named(FOUND | WITH_ALL),
    "pools-by-file": lambda turn, folder: {"pools": {f"p{turn}": discovered(turn, folder)}},
    "discovery": discovered,
    "routes": lambda turn, _: {"routes": [{"prefix": f"/{turn}", "answer": {"status": 200}}]},
    "rate_limits": lambda turn, _: {"rate_limits": [LIMIT | {"name": f"l{turn}"}]},
    "mirrors": lambda turn, _: {"pools": {"next": FOUND}, "routes": [MIRROR | {"prefix": f"/{turn}"}]},
    "policy": lambda turn, _: {"policy": ("steelyard", "maglev", "peak-ewma")[turn % 3]},
    "tls": lambda turn, folder: {"tls": Shelf(folder).pair(f"h{turn}.test")},
    "upstream_tls": lambda turn, _: {"upstream_tls": {"server_name": f"h{turn}.test"}, **SECURE},
    "tracing": lambda turn, _: {"tracing": {"enabled": True, "sample": 1 / (turn + 1)}},
    "export": lambda turn, _: {"tracing": {"endpoint": "http://127.0.0.1:1", "service": f"s{turn}"}},
    "log": logged,
    "health": lambda at, _: {"health_checks": {"path": f"/{at}"}, "outlier_detection": {"failures": at + 1}},
    "admission": lambda turn, _: {"admission": {"header": f"X-{turn}"}},
    "sticky": lambda turn, _: {"sticky": {"header": f"X-{turn}"}},
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


@pytest.mark.parametrize(
    "reloads", [12, pytest.param(300, marks=[pytest.mark.second_tier, pytest.mark.timeout(300)])]
)
@pytest.mark.parametrize("name", SECTIONS)
async def test_replaced_section_is_freed(stage: Stage, tmp_path: Path, name: str, reloads: int) -> None:
    """No type of object grows by one per reload. What exists after the start is frozen, as in a serving process:
    whatever it refers to cannot be freed by the collector."""
    section = SECTIONS[name]
    first = section(0, tmp_path)
    workers = () if "endpoints" in first else (await stage.worker(response()),)
    await stage.serve(*workers, **first)
    gc.collect()
    gc.freeze()
    try:
        await play(stage, section, tmp_path, range(1, WARM_UP))
        before = counted()
        await play(stage, section, tmp_path, range(WARM_UP, WARM_UP + reloads))
        grown = grown_since(before, reloads, name)
        for _ in range(50):
            if not grown:
                break
            await asyncio.sleep(0.1)  # the log's thread takes over new outputs by itself
            grown = grown_since(before, reloads, name)
    finally:
        gc.unfreeze()
    assert grown == {}


def grown_since(before: Counter[str], reloads: int, name: str) -> dict[str, int]:
    """Types of which at least every other reload left an object."""
    after = counted()
    grown = {kind: number for kind in after if (number := after[kind] - before[kind]) >= reloads // 2}
    return {kind: number for kind, number in grown.items() if name != "export" or kind not in OF_THE_SDK}


@pytest.mark.parametrize("is_plain", [False, True], ids=["refused", "plain"])
async def test_removed_pool_and_its_contexts_do_not_wait_for_the_collector(
    stage: Stage, tmp_path: Path, is_plain: bool
) -> None:
    """With the certificates of this machine a context has 860 KiB, which the collector does not know of: it would
    come by only after millions of objects. The first connects fail, refused or in the handshake with a plain worker."""
    worker = await stage.worker(response())
    address = f"https://127.0.0.1:{worker.port if is_plain else 1}"
    section = named(at(address))
    await stage.serve(worker, health_checks={}, **section(0, tmp_path))
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await play(stage, section, tmp_path, range(1, 12))
        # the last, and one that is being closed
        assert Counter(map(type, gc.get_objects()))[ControlPlane] <= 2
        await stage.eventually(lambda: Counter(map(type, gc.get_objects()))[ssl.SSLContext] == 1)
    finally:
        gc.enable()
        gc.unfreeze()


async def play(stage: Stage, section: Section, folder: Path, turns: range) -> None:
    """Reload the configuration of each turn, with the sweeps after it."""
    for turn in turns:
        await stage.reload(**section(turn, folder))
        for _ in range(2):
            stage.clock.at += 1.0
            list(Sweep(stage.proxy, stage.running._look).slices(stage.clock.at))
            await stage.turn(8)


def counted() -> Counter[str]:
    """Return the number of objects by type, without bounded caches of the standard library."""
    re.purge()
    clear_cache()
    for _ in range(3):
        gc.collect()
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
