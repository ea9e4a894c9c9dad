"""One request after another through real sockets: what arrives at the worker, and what comes back."""

from __future__ import annotations

from tests.balancer.conftest import Stage, get, response


async def test_get(stage: Stage) -> None:
    """A GET reaches the worker, and its answer the client."""
    worker = await stage.worker(response(b"hello"))
    await stage.serve(worker)
    answer = await stage.ask(get(b"/a?b=c"))
    assert (answer.status, answer.body) == (200, b"hello")
    assert worker.requests[0].line == b"GET /a?b=c HTTP/1.1"
