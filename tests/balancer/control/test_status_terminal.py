"""`balancer status --watch` on a real terminal: each table replaces the last, and Ctrl-C ends it with exit code 130."""

from __future__ import annotations

import asyncio
import os
import pty
import sys

import pytest

from balancer.control.admin.status_command import CLEAR
from tests.support.programs import PATIENCE
from tests.support.stage import Stage
from tests.support.wire import response

pytestmark = pytest.mark.second_tier

LAUNCHER = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
"""Code that runs a command with a descriptor as its terminal."""


@pytest.mark.parametrize("option", [(), ("--json",)])
async def test_ctrl_c_ends_watch(stage: Stage, option: tuple[str, ...]) -> None:
    """After two tables or documents, without a traceback."""
    await stage.serve(await stage.worker(response()))
    terminal, inner = pty.openpty()
    command = (
        sys.executable,
        "-m",
        "balancer",
        "status",
        "--watch",
        "--url",
        f"http://{stage.running.address}",
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LAUNCHER, str(inner), *command, *option), pass_fds=(inner,)
    )
    os.close(inner)
    try:
        async with asyncio.timeout(PATIENCE):
            output = await asyncio.to_thread(interrupted, terminal, b"ready")
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(terminal)
    assert code == 130, output
    assert b"Traceback" not in output
    assert (CLEAR.encode() in output) == (not option)


def interrupted(terminal: int, word: bytes) -> bytes:
    """Type Ctrl-C after the word has been shown twice; return all output."""
    output = b""
    is_typed = False
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # EIO: the program has closed the terminal
            return output
        output += part
        if not part:
            return output
        if not is_typed and output.count(word) >= 2:
            os.write(terminal, b"\x03")
            is_typed = True
