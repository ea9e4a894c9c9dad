"""A sidecar on a stage."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from balancer.config.schema.sidecar import SidecarConfig
from balancer.tools.sidecar.server import SidecarServer
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, get


def url_of(worker: ScriptedWorker | int) -> str:
    return f"http://127.0.0.1:{worker}" if isinstance(worker, int) else worker.url


class StagedSidecar:
    """A sidecar on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.config: SidecarConfig
        self.server: SidecarServer

    async def serve(self, *origins: dict[str, Any], **keys: Any) -> SidecarServer:
        self.config = SidecarConfig(**{"listen": "127.0.0.1:0", "origins": origins, **keys})
        self.server = SidecarServer(self.config, self.stage.clock, lambda: self.config)
        self.stage.server = self.server
        await self.server.start()
        return self.server

    def sweep(self, seconds: float = 0.25) -> None:
        self.stage.advance(seconds)
        self.server._look(self.stage.clock.at)

    async def document(self, path: str) -> Any:
        answer = await self.stage.ask(b"GET /-/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        return json.loads(answer.body)

    async def origin_status(self, name: str) -> Any:
        (found,) = (one for one in (await self.document("status"))["origins"] if one["id"] == name)
        return found

    async def metric(self, name: str, **labels: str) -> float:
        answer = await self.stage.ask(get(b"/-/metrics").replace(b"example.org", b"localhost"))
        families = text_string_to_metric_families(answer.body.decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def request_for(host: bytes, target: bytes = b"/", *fields: bytes, method: bytes = b"GET") -> bytes:
    return get(target, *fields, method=method).replace(b"Host: example.org", b"Host: " + host)
