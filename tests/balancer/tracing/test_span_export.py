"""Export of spans: collectors that fail, are slow or gone, a full queue, reloads, and the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.config.schema.sections import TracingConfig
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.status import proxy_status
from balancer.tracing.spans import Spans
from tests.support.collector import TAKEN, decoded, flushed, spans_of
from tests.support.config_files import ENDPOINT, problems, write
from tests.support.stage import Stage
from tests.support.wire import PATIENCE, ScriptedWorker, Wire, answering, get, playing, response

REFUSED = response(b"", status=b"400 Bad Request")
QUICK = response(b"quick")


def exporting(collector: ScriptedWorker | int, **more: Any) -> dict[str, Any]:
    """The table [tracing] for a collector; every request is sampled."""
    port = collector if isinstance(collector, int) else collector.port
    return {"endpoint": f"http://127.0.0.1:{port}", "sample": 1.0} | more


def spans_in(stage: Stage) -> Spans:
    tracing = stage.cluster.process.tracing
    assert tracing is not None
    assert tracing.spans is not None
    return tracing.spans


def counts(stage: Stage) -> dict[str, Any]:
    """Spans by result, from the status."""
    found = proxy_status(stage.control_plane)["tracing"]
    assert isinstance(found, dict)
    return found


async def test_failure_and_recovery_are_one_line_each(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many exports fail; lost spans are counted, and nothing else is printed."""
    collector = await stage.worker(answering(REFUSED, REFUSED, REFUSED, TAKEN))
    await stage.serve(await stage.worker(QUICK), tracing=exporting(collector, queue=4))
    client = await stage.client()

    def have_come(number: int) -> bool:
        return len(collector.requests) == number

    for number in range(1, 4):
        for _ in range(2):
            assert (await client.ask(get())).status == 200
        await stage.eventually(partial(have_come, number))
        await stage.eventually(lambda: not spans_in(stage).waiting)
    failed = counts(stage)
    assert (failed["exported"], failed["exporting"]) == (0, False)
    assert failed["lost"] + failed["dropped"] == 3 + 5 * 2
    await client.ask(get())
    await stage.eventually(lambda: counts(stage)["exported"] == 2)
    assert counts(stage)["exporting"]
    where = f"http://127.0.0.1:{collector.port}/v1/traces"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"balancer: tracing: {where} takes no spans (Failed to export spans batch code: 400, reason: Bad Request); "
        "they are lost until it does",
        f"balancer: tracing: {where} takes spans again; lost since the start: {failed['lost']}",
    ]


async def test_full_queue_drops_spans(stage: Stage) -> None:
    """A collector that hangs holds as many spans as fit; requests are answered, and the rest is counted."""
    go = asyncio.Event()
    collector = await stage.worker(playing(Wire.request, go, TAKEN))
    await stage.serve(await stage.worker(QUICK), tracing=exporting(collector, queue=10))
    client = await stage.client()
    for _ in range(50):
        assert (await client.ask(get())).status == 200
    assert counts(stage) == {"waiting": 10, "exported": 0, "dropped": 101 - 10, "lost": 0, "exporting": True}
    text = metrics_text(stage.control_plane)[0].decode()
    assert 'steelyard_spans_total{result="dropped"} 91.0' in text
    assert "steelyard_spans_waiting 10.0" in text
    go.set()
    await stage.eventually(lambda: counts(stage)["exported"] == 10)


async def test_collector_that_is_gone(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests are answered; the end waits for a bounded time, and says once what was lost."""
    await stage.serve(await stage.worker(QUICK), tracing=exporting(stage.dead_port()))
    assert (await stage.ask(get())).status == 200
    async with asyncio.timeout(PATIENCE):
        await flushed(stage)
    await stage.eventually(lambda: not spans_in(stage).waiting)
    assert counts(stage)["lost"] == 3
    [line] = capsys.readouterr().err.splitlines()
    assert "takes no spans (" in line
    assert "onnection" in line


async def test_spans_are_flushed_at_the_end(stage: Stage) -> None:
    """Also the spans of a request that ends with the process."""
    collector = await stage.worker(TAKEN)
    go = asyncio.Event()
    worker = await stage.worker(playing(Wire.request, go, QUICK))
    server = await stage.serve(worker, tracing=exporting(collector))
    client = await stage.asking(worker, get())
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    go.set()
    assert (await client.response()).status == 200
    await client.rest()
    assert await stopping
    assert [span.kind for span in decoded(collector.requests)].count("server") == 1
    stage.server = None


async def test_reload(stage: Stage) -> None:
    """Off, propagation alone, export, and another collector, for connected clients, too."""
    one, two = await stage.worker(TAKEN), await stage.worker(TAKEN)
    worker = await stage.serve_worker(QUICK)
    client = await stage.client()
    await client.ask(get())
    await stage.reload(tracing={"enabled": True, "sample": 0.0})
    await client.ask(get())
    assert proxy_status(stage.control_plane)["tracing"] is None
    await stage.reload(tracing=exporting(one))
    first = spans_in(stage)
    await client.ask(get())
    await stage.reload(tracing=exporting(one, sample=0.0))
    assert spans_in(stage) is first
    await client.ask(get())
    await stage.reload(tracing=exporting(two))
    await client.ask(get())
    assert len(await spans_of(stage, two)) == 2
    await stage.eventually(lambda: len(decoded(one.requests)) == 2)
    await stage.reload(tracing={})
    await client.ask(get())
    fields = [request.value(b"traceparent") for request in worker.requests]
    assert [field and field[-2:] for field in fields] == [None, b"02", b"03", b"02", b"03", None]


async def test_headers_of_the_environment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials come from OpenTelemetry's own variables, so they are in no file of the balancer."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    collector = await stage.worker(TAKEN)
    await stage.serve(await stage.worker(QUICK), tracing=exporting(collector, service="front"))
    await stage.ask(get())
    [first, *_] = await spans_of(stage, collector)
    assert collector.requests[0].value(b"authorization") == b"Bearer secret"
    assert collector.requests[0].line == b"POST /v1/traces HTTP/1.1"
    assert first.resource["service.name"] == "front"
    assert first.resource["deployment.environment.name"] == "test"


# --- configuration


@pytest.mark.parametrize(
    "endpoint",
    [
        *("127.0.0.1:4317", "http://", "http://h:99999", "http://h:0", "grpc://h:4317", "http://h\\n:1"),
        *("http://user:hush@h", "http://h/?key=hush"),
    ],
)
def test_wrong_endpoint_is_one_line_without_it(tmp_path: Path, endpoint: str) -> None:
    [line] = problems(write(tmp_path, f'{ENDPOINT}[tracing]\nendpoint = "{endpoint}"\n'))
    assert "tracing.endpoint: must be http://host:port" in line
    assert "hush" not in line


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("http://h:4318/otlp/v1/traces", "http://h:4318/otlp/v1/traces"),
    ],
)
def test_endpoint_turns_tracing_on(given: str, endpoint: str) -> None:
    """It gets OTLP's path if it has none."""
    config = TracingConfig(endpoint=given)
    assert (config.enabled, config.endpoint) == (True, endpoint)


def test_absent_packages_are_named() -> None:
    """A fresh interpreter whose search for packages does not find OpenTelemetry."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from balancer.config.schema.sections import TracingConfig\n"
        "try: TracingConfig(endpoint='http://h')\n"
        "except ValueError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[otel]' in the checkout" in ran.stdout


def test_opentelemetry_is_imported_only_for_the_export() -> None:
    """Neither without tracing nor for propagation alone."""
    code = (
        "import sys\n"
        "from balancer.config.loading import Settings\n"
        "from balancer.process.server import Server\n"
        "end = {'id': 'a', 'address': 'http://127.0.0.1:1'}\n"
        "admin = {'socket': 'off'}\n"
        "Server(Settings(listen='127.0.0.1:0', endpoints=[end], admin=admin, tracing={'enabled': True}))\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
