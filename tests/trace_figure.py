"""Draw docs/tracing.png: the spans of one request that waits, is hedged and retried, as a collector receives them.

    python -m tests.trace_figure docs/tracing.png

A balancer, three workers and a collector run in this process, on loopback and in real time. The workers first answer
some requests quickly, from which the balancer learns what is late; these are not sampled.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from balancer.config.loading import Settings
from balancer.process.server import Server, new_event_loop
from experiments.report import canvas
from experiments.report.canvas import STYLE
from experiments.report.palette import INK
from tests.support.collector import TAKEN, Received, decoded
from tests.support.wire import ScriptedWorker, Wire, answering, client_of, get, response

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = "00f067aa0ba902b7"
SAMPLED = f"traceparent: 00-{TRACE}-{CLIENT}-01".encode()
UNSAMPLED = f"traceparent: 00-{TRACE}-{CLIENT}-00".encode()
WARM_UP = 300
TRIES = 20
COLOURS = {"server": "#101010", "queue": "#8a8a8a", "connect": "#e69f00"}
ATTEMPTS = {"ok": "#009e73", "error_status": "#d55e00", "reset": "#b2182b"}


class Workers:
    """Three workers that play one request's fate in the order in which it comes to them: the first one is silent and
    then breaks the connection, the second is busy, the third answers."""

    def __init__(self) -> None:
        self.arrived = 0

    async def serve(self, wire: Wire) -> None:
        while True:
            request = await wire.request()
            if b"/checkout" not in request.line:
                await asyncio.sleep(0.06 if b"/busy" in request.line else 0.004)
                await wire.send(response())
                continue
            self.arrived += 1
            if self.arrived == 1:
                await asyncio.sleep(0.15)
                wire.reset()
                return
            if self.arrived == 2:
                await asyncio.sleep(0.03)
                await wire.send(response(b"busy", status=b"503 Service Unavailable"))
            else:
                await asyncio.sleep(0.04)
                await wire.send(response(b"answer"))


async def exported() -> list[Received]:
    """Serve the request, and return its spans as exported."""
    script, collector = Workers(), ScriptedWorker(answering(TAKEN))
    workers = [ScriptedWorker(script.serve) for _ in range(3)]
    for worker in (collector, *workers):
        await worker.start()
    endpoints = [
        {"id": f"us-{n}", "region": "us", "address": f"http://127.0.0.1:{worker.port}", "max_in_flight": 1}
        for n, worker in enumerate(workers)
    ]
    tracing = {"endpoint": f"http://127.0.0.1:{collector.port}", "trust": "all"}
    settings = {
        "listen": "127.0.0.1:0",
        "endpoints": endpoints,
        "policy": "least-in-flight",
        "seed": 1,
        "hedging": {"enabled": True, "minimum": 0.04},
        "retries": 3,
        "admin": {"socket": "off"},
        "tracing": tracing,
    }
    server = Server(Settings.model_validate(settings))
    await server.start()
    port = server.address.port
    first = await client_of(port)
    for _ in range(WARM_UP):
        await first.ask(get(b"/warm-up", UNSAMPLED))
    others = [await client_of(port) for _ in workers]
    for other in others:
        await other.send(get(b"/busy", UNSAMPLED))
    await asyncio.sleep(0.02)
    answer = await first.ask(get(b"/checkout", SAMPLED))
    assert answer.body == b"answer", answer
    for wire in (first, *others):
        await wire.close()
    await server.stop()
    for worker in (collector, *workers):
        await worker.stop()
    return decoded(collector.requests)


def in_order(spans: Sequence[Received]) -> list[tuple[int, Received]]:
    """Depth and span, each span before its children."""
    children: dict[str, list[Received]] = {}
    for span in spans:
        children.setdefault(span.parent_id, []).append(span)

    def below(parent: str, depth: int) -> list[tuple[int, Received]]:
        return [
            row for span in children.get(parent, ()) for row in ((depth, span), *below(span.id, depth + 1))
        ]

    return below(CLIENT, 0)


def label_of(span: Received) -> str:
    values = {name.removeprefix("steelyard."): value for name, value in span.attributes.items()}
    if span.kind == "server":
        return f"{span.name} {values['url.path']}, {values['http.response.status_code']}"
    if span.kind == "client":
        reason = values.get("error.type", values.get("http.response.status_code"))
        kind = values["attempt"] if values["attempt"] != "first" else "first attempt"
        return f"{kind} at {values['endpoint']}: {reason}"
    return span.name


def milliseconds(span: Received) -> str:
    length = span.duration * 1e3
    return f"{length:.0f} ms" if length >= 10 else f"{length:.1f} ms"


@mpl.rc_context(STYLE)
def figure_of(spans: Sequence[Received]) -> Figure:
    """A bar for each span, below its parent."""
    rows = in_order(spans)
    began = rows[0][1].start
    figure, [axes] = canvas.blank(0.5 * len(rows) + 0.8)
    for at, (depth, span) in enumerate(rows):
        start, length = (span.start - began) * 1e3, max(span.duration * 1e3, 0.4)
        colour = COLOURS.get(span.kind) or COLOURS.get(span.name)
        axes.barh(
            at, length, left=start, height=0.4, color=colour or ATTEMPTS[span.attributes["steelyard.outcome"]]
        )
        text = f"{'└ ' if depth else ''}{label_of(span)} · {milliseconds(span)}"
        axes.text(start, at - 0.28, text, va="bottom", color=INK, fontsize=9)
    axes.set_xlim(0, rows[0][1].duration * 1.08e3)
    axes.set_ylim(len(rows) - 0.5, -0.9)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds since the first byte of the request")
    return figure


def is_as_planned(spans: Sequence[Received]) -> bool:
    """Whether the request has waited, and was hedged and retried: on a busy machine it may not be."""
    kinds = [span.attributes["steelyard.attempt"] for span in spans if span.kind == "client"]
    return kinds == ["first", "hedge", "retry"] and any(span.name == "queue" for span in spans)


def main(path: Path) -> None:
    for _ in range(TRIES):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            spans = runner.run(exported())
        if is_as_planned(spans):
            path.write_bytes(canvas.to_png(figure_of(spans)))
            return
    sys.exit(f"trace_figure: not as planned in {TRIES} tries; the machine is busy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
