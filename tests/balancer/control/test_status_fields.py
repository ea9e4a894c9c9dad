"""docs/status.md lists every field of the status of a running balancer, and no other; what is off is absent."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

from balancer.control.admin.merge import merged_status
from balancer.control.admin.policy_report import raw
from balancer.control.admin.status import proxy_status
from tests.support.admin_requests import local, metrics, status
from tests.support.documentation import documented, paths_of
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, response

OPEN = ("", "*")


@cache
def pattern_of(field: str) -> re.Pattern[str]:
    return re.compile(
        re.escape(field).replace(r"\*", r"[^.]+(?:\.[^.]+)*" if field.endswith("*") else r"[^.]+")
    )


def covers(field: str, path: str) -> bool:
    """Whether the documented field stands for the path; a part may be empty or null in the document."""
    return pattern_of(field).fullmatch(path) is not None or field.startswith((f"{path}.", f"{path}[]"))


async def statuses(stage: Stage, tmp_path: Path) -> list[Any]:
    """Of a balancer with everything switched on that adds fields, and merged with that of a second process."""
    (tmp_path / "more.json").write_text('[{"id": "found", "address": "http://127.0.0.1:9"}]')
    go = asyncio.Event()
    await stage.serve(
        await stage.worker(response()),
        stage.dead_port(),
        await stage.worker(playing(Wire.request, go, response())),
        policy={
            "name": "round-robin",
            "canary": {"name": "random", "share": 0.5},
            "shadow": ["least-in-flight"],
        },
        hedging={"enabled": True},
        concurrency={"adaptive": True},
        admission={"levels": [{"name": "gold"}, {"name": "tin"}]},
        log={"path": str(tmp_path / "access.log")},
        sticky={"cookie": "c", "key": "k" * 16},
        discovery={"file": {"path": str(tmp_path / "more.json")}},
        route_watch={"enabled": True},
        explain={"enabled": True},
        rate_limits=[{"name": "all", "requests": 1000, "by": "all", "everywhere": True}],
        routes=[
            {"cluster": "default", "mirror": {"cluster": "next", "share": 1.0}},
            {"path": "/split", "split": {"default": 1, "next": 0}},
        ],
        clusters={"next": {"endpoints": [{"id": "n0", "address": "http://127.0.0.1:9"}]}},
    )
    for _ in range(4):
        await stage.sending(get())
    await stage.eventually(lambda: stage.cluster.counts.requests >= 4)
    refused = await stage.ask(b"GET / HTTP/9.9\r\n\r\n")
    assert refused.status >= 400
    stage.control_plane.registry.remove("w2")
    documents = [await status(stage)]
    one = json.loads(json.dumps(proxy_status(stage.control_plane, raw)))
    documents.append(json.loads(json.dumps(merged_status([one, json.loads(json.dumps(one))], 2, 1))))
    go.set()
    return documents


async def test_every_field_is_documented(stage: Stage, tmp_path: Path) -> None:
    fields = documented()
    assert len(fields) > 150
    paths = {path for document in await statuses(stage, tmp_path) for path in paths_of(document)}
    undocumented = {path for path in paths if not any(covers(field, path) for field in fields)}
    assert not undocumented, sorted(undocumented)
    gone = {field for field in fields if not any(covers(field, path) for path in paths)}
    assert not gone, sorted(gone)


def test_every_field_has_a_meaning() -> None:
    assert not [field for field, meaning in documented().items() if len(meaning.strip()) < 5]


async def test_what_is_off_by_default_is_absent(stage: Stage) -> None:
    """No object on the path of a request, no thread, no metric; null or nothing in the status."""
    await stage.serve(await stage.worker(response()))
    assert (await stage.ask(get(b"/", b"X-Explain: 1"))).value(b"X-Picked") is None
    cluster, plane = stage.cluster, stage.control_plane
    assert (cluster.admission, cluster.limiter, cluster.journal, cluster.canary) == (None,) * 4
    assert (cluster.explaining, cluster.router.trace, cluster.process.access_log) == (None,) * 3
    assert (plane.recorder, stage.state().concurrency) == (None, None)
    assert (plane.shadows, plane.rate_limits.by_name) == ((), {})
    assert (cluster.reads_load, cluster.queue.tickets.is_adaptive) == (False, False)
    assert {"access-log", "recorder"}.isdisjoint(thread.name for thread in threading.enumerate())
    shown = await status(stage)
    assert {shown[name] for name in ("levels", "access_log", "buffering")} == {None}
    assert shown["endpoints"][0]["concurrency"] is None
    policy = json.loads((await stage.ask(local(b"/-/policy"))).body)
    explained = json.loads((await stage.ask(local(b"/-/explain"))).body)
    assert (policy["canary"], policy["shadow"], explained["recent"]) == (None, [], [])
    text = await metrics(stage)
    assert not [name for name in ("steelyard_policy_", "steelyard_buffer", "rate_limit") if name in text]
