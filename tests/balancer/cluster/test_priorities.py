"""Backups in a running server: configuration, commands, status, reload, `balancer check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from tests.support.admin_requests import command, status
from tests.support.command_line import run_in_process
from tests.support.config_files import problem, write
from tests.support.scripts import after_a_request
from tests.support.stage import Stage, endpoint
from tests.support.wire import get, response


async def bodies(stage: Stage, number: int = 10) -> list[bytes]:
    client = await stage.client()
    found = [(await client.ask(get())).body for _ in range(number)]
    await client.close()
    return found


async def patch(stage: Stage, name: str, **keys: Any) -> None:
    assert (await command(stage, "PATCH", f"/-/endpoints/{name}", keys))[0] == 200


async def test_backup_takes_over_and_gives_back(stage: Stage) -> None:
    """While the others drain, and after a reload that makes it one of them."""
    first, backup = await stage.worker(response(b"first")), await stage.worker(response(b"backup"))
    two = [endpoint(first, "a0"), endpoint(first, "a1")]
    await stage.serve(endpoints=[*two, endpoint(backup, "b0", priority=1)])
    assert {*await bodies(stage)} == {b"first"}
    await patch(stage, "a0", state="drain")
    assert (await bodies(stage)).count(b"backup") == 3
    await patch(stage, "a1", state="drain")
    assert {*await bodies(stage)} == {b"backup"}
    document = await status(stage)
    assert [each["priority"] for each in document["endpoints"]] == [0, 0, 1]
    assert document["endpoints"][2]["condition_text"] == "ready (backup, priority 1)"
    assert document["panic"]["everywhere"] is False
    await patch(stage, "a1", state="ready")
    await stage.reload(panic={"overprovisioning": 1000.0})
    assert {*await bodies(stage)} == {b"first"}
    await stage.reload(panic={"overprovisioning": 1.0})
    assert (await bodies(stage)).count(b"backup") == 5
    await patch(stage, "a0", state="ready")
    await stage.reload(endpoints=[*two, endpoint(backup, "b0")])
    assert (await bodies(stage, 9)).count(b"backup") == 3


async def test_requests_are_retried_at_a_backup(stage: Stage) -> None:
    """From the first on, before health knows that the endpoints are down."""
    backup = await stage.worker(response(b"backup"))
    dead = [endpoint(stage.dead_port(), name) for name in ("a0", "a1")]
    await stage.serve(endpoints=[*dead, endpoint(backup, "b0", priority=1)], retries=1)
    assert {*await bodies(stage)} == {b"backup"}


@pytest.mark.parametrize("failure", [b"SSH-2.0-x\r\n", response(b"busy", status=b"503 Service Unavailable")])
async def test_a_failure_at_a_full_endpoint_is_retried_at_a_backup(stage: Stage, failure: bytes) -> None:
    """While all are full, requests wait and do not go to backups; those that have failed do."""
    both = [
        endpoint(await stage.worker(after_a_request(failure)), "a0", max_in_flight=1),
        endpoint(await stage.worker(response(b"backup")), "b0", priority=1),
    ]
    await stage.serve(endpoints=both, retry={"statuses": [503]})
    assert {*await bodies(stage, 3)} == {b"backup"}


async def test_backup_is_added_by_command(stage: Stage) -> None:
    first, backup = await stage.worker(response(b"first")), await stage.worker(response(b"backup"))
    await stage.serve(first)
    added = endpoint(backup, "b0", priority=2)
    assert (await command(stage, "POST", "/-/endpoints", added))[1]["priority"] == 2
    assert {*await bodies(stage)} == {b"first"}
    await patch(stage, "w0", state="maintenance")
    assert {*await bodies(stage)} == {b"backup"}


async def test_discovered_endpoints_are_backups_as_their_file_says(stage: Stage, tmp_path: Path) -> None:
    first, backup = await stage.worker(response(b"first")), await stage.worker(response(b"backup"))
    found = write(
        tmp_path,
        f'[[endpoints]]\nid = "b0"\naddress = "http://127.0.0.1:{backup.port}"\npriority = 1\n',
    )
    await stage.serve(endpoints=[endpoint(first)], discovery={"file": {"path": found}})
    assert {*await bodies(stage)} == {b"first"}
    await patch(stage, "w0", state="drain")
    assert {*await bodies(stage)} == {b"backup"}


def test_configuration(tmp_path: Path) -> None:
    text = '[[endpoints]]\nid = "a"\naddress = "http://a:1"\n'
    backup = text.replace('"a"', '"b"') + "priority = 1\n"
    checked = run_in_process(main, "balancer", "check", str(write(tmp_path, text + backup)))
    assert "http://a:1\n" in checked.stdout
    assert "http://a:1 (backup, priority 1)\n" in checked.stdout
    assert "endpoints.0.priority: " in problem(tmp_path, text + "priority = -1\n")
    assert "endpoints.0.priority: " in problem(tmp_path, text + "priority = 1.5\n")
    assert "panic.overprovisioning: " in problem(tmp_path, text + "[panic]\noverprovisioning = 0.5\n")
