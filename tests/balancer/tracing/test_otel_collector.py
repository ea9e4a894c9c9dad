"""Spans in the real OpenTelemetry collector, whose path OTELCOL names: any build with the otlp receiver and the debug
exporter, such as `otelcol`."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from experiments.platform.ports import free_ports
from tests.support.collector import flushed
from tests.support.stage import Stage
from tests.support.wire import PATIENCE, get, response

COLLECTOR = os.environ.get("OTELCOL", "")

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.peer,
    pytest.mark.skipif(not COLLECTOR, reason="OTELCOL names no collector"),
]

CONFIG = """\
receivers: {{ otlp: {{ protocols: {{ http: {{ endpoint: "127.0.0.1:{port}" }} }} }} }}
exporters: {{ debug: {{ verbosity: detailed, sampling_initial: 1000000 }} }}
service:
  telemetry: {{ metrics: {{ level: none }} }}
  pipelines: {{ traces: {{ receivers: [otlp], exporters: [debug] }} }}
"""
REQUESTS = 500


async def test_collector_takes_every_span(stage: Stage, tmp_path: Path) -> None:
    """With the ids that the worker has received."""
    [port] = free_ports(1)
    config = tmp_path / "collector.yaml"
    config.write_text(CONFIG.format(port=port))
    log = tmp_path / "collector.log"
    with log.open("wb") as output:
        collector = await asyncio.create_subprocess_exec(COLLECTOR, "--config", str(config), stderr=output)
    try:
        async with asyncio.timeout(PATIENCE):
            while b"Everything is ready" not in log.read_bytes():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        worker = await stage.worker(response())
        tracing = {"endpoint": f"http://127.0.0.1:{port}", "sample": 1.0}
        await stage.serve(worker, tracing=tracing)
        client = await stage.client()
        for _ in range(REQUESTS):
            await client.ask(get())
        await flushed(stage)
    finally:
        collector.terminate()
        await collector.wait()
    received = set(re.findall(r"^    ID +: ([0-9a-f]{16})$", log.read_text(), re.MULTILINE))
    sent = {(request.value(b"traceparent") or b"").decode().split("-")[2] for request in worker.requests}
    assert (len(sent), sent <= received) == (REQUESTS, True)
    assert len(received) == 2 * REQUESTS + 1
