"""Heads of HTTP/2 up to a `limits.head` that is larger than the default."""

from __future__ import annotations

import pytest

from tests.support.http2_client import fields, http2_client
from tests.support.stage import Stage
from tests.support.wire import response


@pytest.mark.parametrize(("number", "size"), [(1, 65_000), (5, 40_000), (40, 20_000), (13, 70_000)])
async def test_head_within_a_larger_limit(stage: Stage, number: int, size: int) -> None:
    """It is forwarded, as often as it comes, and no flood."""
    worker = await stage.worker(response(b""))
    await stage.serve(worker, limits={"head": 1_000_000})
    client = await http2_client(stage)
    pairs = [(b"x-%d" % one, b"%d" % one + b"x" * size) for one in range(number)]
    for _ in range(3):
        assert (await client.answer(client.begin(fields(b"/", *pairs), is_last=True))).status == 200
    assert {request.value(b"x-0") for request in worker.requests} == {pairs[0][1]}
    assert stage.cluster.process.counts.http2_floods == 0


async def test_head_above_a_larger_limit(stage: Stage) -> None:
    """431 for its stream alone, up to twice the limit."""
    await stage.serve(await stage.worker(response(b"")), limits={"head": 200_000})
    client = await http2_client(stage)
    pairs = [(b"x-%d" % one, b"%d" % one + b"x" * 50_000) for one in range(7)]
    assert (await client.answer(client.begin(fields(b"/", *pairs), is_last=True))).status == 431
    assert (await client.ask()).status == 200
