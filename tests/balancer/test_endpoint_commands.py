"""`balancer endpoints` against a unit that runs: what it prints, and one line for every mistake."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner, Result

from balancer.__main__ import cli
from tests.balancer.conftest import Stage, get, response
from tests.balancer.test_admin import TOKEN


async def run(stage: Stage, *words: str, token: str | None = None) -> Result:
    """Beside the unit, in a thread."""
    url = f"http://{stage.server.address}" if stage.server is not None else "http://127.0.0.1:9"
    arguments = ["endpoints", "--url", url, *(("--token", token) if token is not None else ()), *words]
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def test_a_worker_s_life(stage: Stage) -> None:
    """Added, weighed, drained, taken down, brought up, removed; each line shows what came of it."""
    fresh = await stage.worker(response(b"new"))
    await stage.serve(await stage.worker(response(b"old")))
    address = f"http://127.0.0.1:{fresh.port}"
    for words, shown in (
        (
            ["add", "fresh", address, "--region", "emea", "--weight", "2"],
            ["fresh", "ready", "weight 2", "emea", "command"],
        ),
        (["weight", "fresh", "0.5"], ["weight 0.5"]),
        (["drain", "fresh"], ["drain"]),
        (["maintenance", "fresh"], ["maintenance"]),
        (["ready", "fresh"], ["ready", address]),
        (["list"], ["w0", "configuration", "fresh", "command"]),
        (["remove", "fresh"], ["fresh", "removed", "in flight 0"]),
    ):
        ran = await run(stage, *words)
        assert ran.exit_code == 0, ran.output
        assert not [word for word in shown if word not in ran.output], ran.output
    assert (await stage.ask(get())).body == b"old"


async def test_one_that_leaves_is_listed(stage: Stage) -> None:
    """As long as something is in flight there."""
    go = asyncio.Event()
    from tests.balancer.test_reload import holding

    worker = await holding(stage, go)
    await stage.serve(worker)
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: worker.requests)
    assert "in flight 1" in (await run(stage, "remove", "w0")).output
    assert "leaving" in (await run(stage, "list")).output
    go.set()
    assert (await client.response()).status == 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "w0", "http://a:1"], "id: 'w0' is used already (configuration); every id must be unique"),
        (["add", "a", "a:1"], "address: must be http://host:port or https://host:port, got 'a:1'"),
        (["drain", "w9"], "no endpoint 'w9'; known: w0"),
        (["weight", "w0", "-1"], ""),
        (["weight", "w0", "0"], "weight: input should be greater than 0, got 0.0"),
    ],
)
async def test_mistakes(stage: Stage, words: list[str], said: str) -> None:
    """What the unit says of it, or the command line."""
    await stage.serve(await stage.worker(response()))
    ran = await run(stage, *words)
    assert ran.exit_code != 0
    assert said in ran.output


async def test_who_is_not_let_in(stage: Stage) -> None:
    """Or finds nobody: it is said what to look at."""
    ran = await run(stage, "list")
    assert "--url: no answer from http://127.0.0.1:9: " in ran.output
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    assert (await run(stage, "list", token=TOKEN)).exit_code == 0
    ran = await asyncio.to_thread(CliRunner().invoke, cli, ["endpoints", "--url", "nonsense", "list"])
    assert "--url: no answer from nonsense" in ran.output
