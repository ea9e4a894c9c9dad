"""Hostile DNS answers, admin responses and names of files: one printable line for each."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from balancer.__main__ import cli, main
from tests.support.command_line import run_in_process
from tests.support.dns_discovery import NAME, known, only_source, pass_time, serve_names
from tests.support.name_server import SRV, NameServer, name_bytes
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, playing, response


def test_messages_are_printable_and_bounded(tmp_path: Path) -> None:
    """Messages contain no control characters and are bounded in length."""
    path = tmp_path / "\x1b[31m.toml"
    path.write_text(f'policy = "{"x" * 100_000}"\n', encoding="utf-8")
    for words in (
        ["check", str(path)],
        ["check", str(tmp_path / "\x1b]none")],
        ["serve", "--worker", "\x1b[31m"],
    ):
        done = run_in_process(main, "balancer", *words)
        lines = done.stderr.splitlines()
        assert (done.returncode, "\x1b" in done.stderr) == (2, False)
        assert all(line.startswith("balancer: ") and len(line) < 3000 for line in lines)
        assert len(lines) == (2 if words[-1] == str(path) else 1)


# --- name servers


@pytest.mark.parametrize(
    ("port", "target"),
    [
        (0, b"\1a\4test\0"),
        (80, b"\0"),
        (80, b"\5\x1b[31m\4test\0"),
        (80, b"\3a\nb\4test\0"),
        (80, b"\3a b\0"),
    ],
)
async def test_unusable_srv_record(stage: Stage, names: NameServer, port: int, target: bytes) -> None:
    """Port 0, the root, invalid host names: the answer is ignored, and the endpoints stay."""
    names.service(NAME, (0, 0, 80, "a.test"))
    names.address("a.test", "127.0.0.1")
    await serve_names(stage, names, record="srv")
    names.records[NAME, SRV] = [(0, struct.pack("!HHH", 0, 0, port) + target)]
    await pass_time(stage, 1)
    assert known(stage) == ["127.0.0.1-80"]
    assert (only_source(stage).problem or "").isprintable()
    assert "SRV" in (only_source(stage).problem or "")
    names.records[NAME, SRV] = [(0, struct.pack("!HHH", 0, 0, 81) + name_bytes("a.test"))]
    await pass_time(stage, 2)
    assert known(stage) == ["127.0.0.1-81"]


# --- admin responses


async def run_against(answer: bytes, *words: str) -> Result:
    """Run `balancer endpoints` against a server that sends this response."""
    async with ScriptedWorker(playing(Wire.request, answer)) as worker:
        arguments = ["endpoints", "--url", worker.url, "--token", "t" * 20, *words]
        ran = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran


ROW = (
    b'{"id": "%b", "condition_text": "ready", "in_flight": 0, "weight": 1, "region": "r", '
    b'"address": "a", "source": "c"}'
)


def listing(row: bytes) -> bytes:
    """An answer with one endpoint."""
    document = b'{"panic": {"everywhere": false, "regions": []}, "endpoints": [%b], "leaving": []}'
    return response(document % row)


ANSWERS: dict[str, bytes] = {
    "no object": response(b"[]"),
    "no list": response(b'{"endpoints": 5, "leaving": []}'),
    "no rows": response(b'{"endpoints": [5], "leaving": []}'),
    "other types": response(b'{"endpoints": [{"id": [], "state": {}}], "leaving": []}'),
    "a weight that is none": listing((ROW % b"a").replace(b'"weight": 1', b'"weight": "1"')),
    "deep": response(b"[" * 100_000),
    "no JSON": response(b"\xff"),
    "no HTTP": b"SSH-2.0-x\r\n",
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
    "an error that is none": response(b"[1]", status=b"500 No"),
    "a deep error": response(b"[" * 100_000, status=b"500 No"),
}


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("words", [("list",), ("remove", "a"), ("ready", "a")])
async def test_invalid_admin_response(case: str, words: tuple[str, ...]) -> None:
    """One line that names the option."""
    ran = await run_against(ANSWERS[case], *words)
    assert ran.exit_code == 1
    assert "--url: " in ran.output
    assert ran.output.count("\n") == 1


async def test_control_characters_are_escaped() -> None:
    ran = await run_against(listing(ROW % b"\\u001b[31m\\na"), "list")
    assert ran.exit_code == 0
    assert ran.output.startswith("\\x1b[31m a ")
    assert ran.output.count("\n") == 1


async def test_redirect_is_not_followed() -> None:
    async with ScriptedWorker(playing(Wire.request, response(b"{}"))) as elsewhere:
        moved = response(b"", b"Location: %b/" % elsewhere.url.encode(), status=b"307 Elsewhere")
        ran = await run_against(moved, "list")
        assert "307" in ran.output
        assert elsewhere.connections == []
