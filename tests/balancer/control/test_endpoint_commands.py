"""`balancer endpoints` against a running balancer: output and errors."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import Result

from tests.support.admin_requests import TOKEN
from tests.support.command_line import run_balancer
from tests.support.scripts import holding
from tests.support.stage import Stage
from tests.support.wire import get, response


async def run(stage: Stage, *words: str, token: str | None = None) -> Result:
    url = f"http://{stage.server.address}" if stage.server is not None else "http://127.0.0.1:9"
    token_words = ("--token", token) if token is not None else ()
    return await run_balancer("endpoints", "--url", url, *token_words, *words)


async def test_commands_of_an_endpoint(stage: Stage) -> None:
    """Add, weight, drain, maintenance, ready, remove; each prints the resulting state."""
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


async def test_leaving_endpoint_is_listed(stage: Stage) -> None:
    """While it has requests in flight."""
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker)
    client = await stage.asking(worker, get())
    assert "in flight 1" in (await run(stage, "remove", "w0")).output
    assert "leaving" in (await run(stage, "list")).output
    go.set()
    assert (await client.response()).status == 200


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["add", "w0", "http://a:1"], ("id", "'w0'", "configuration")),
        (["add", "a", "a:1"], ("address", "http://host:port", "'a:1'")),
        (["drain", "w9"], ("'w9'", "w0")),
        (["weight", "w0", "-1"], ()),
        (["weight", "w0", "0"], ("weight", "greater than 0")),
    ],
)
async def test_invalid_commands(stage: Stage, words: list[str], fragments: tuple[str, ...]) -> None:
    """The message comes from the balancer or from the command line."""
    await stage.serve(await stage.worker(response()))
    ran = await run(stage, *words)
    assert ran.exit_code != 0
    assert all(fragment in ran.output for fragment in fragments), ran.output


async def test_unreachable_balancer_and_token(stage: Stage) -> None:
    """Without a balancer the message names `--url`; a token gives access."""
    ran = await run(stage, "list")
    assert "--url" in ran.output
    assert "http://127.0.0.1:9" in ran.output
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    assert (await run(stage, "list", token=TOKEN)).exit_code == 0
    ran = await run_balancer("endpoints", "--url", "nonsense", "list")
    assert "--url" in ran.output
    assert "nonsense" in ran.output
