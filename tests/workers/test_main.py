"""The program `workers`: output, exit codes, signals and invalid input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from aiohttp import ClientSession
from pydantic.fields import FieldInfo

from tests.support.command_line import complaint
from tests.support.programs import needs_full_device
from tests.workers.started import RunWorkers, in_flight, ready_port
from workers.__main__ import fault_option, main

pytestmark = pytest.mark.real_time


async def test_ready_line_has_name_url_and_settings(run_workers: RunWorkers) -> None:
    """One line, with the real port, once connections are accepted."""
    arguments = ("--region", "emea", "--name", "emea-0", "--rtt", "350ms", "--slots", "2")
    process = await run_workers("serve", *arguments)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("emea-0 ready on http://127.0.0.1:")
    assert line.endswith(" (region emea, rtt 350 ms, 2 slots)\n")


@needs_full_device
async def test_ready_line_that_cannot_be_written_is_on_standard_error(run_workers: RunWorkers) -> None:
    """The worker serves, and exits with 0."""
    full = os.open("/dev/full", os.O_WRONLY)
    process = await run_workers("serve", output=full)
    os.close(full)
    assert process.stderr is not None
    line = (await process.stderr.readline()).decode()
    assert line.startswith("workers: standard output: No space left on device: local-0 ready on http://"), (
        line
    )
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


def test_closed_standard_streams_are_the_null_device() -> None:
    """No socket gets their descriptors."""
    shown = "atexit.register(lambda: os.write(2, os.readlink('/proc/self/fd/1').encode()))"
    code = f"import atexit, os, workers.__main__ as program; {shown}; program.main()"
    command = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, os.devnull)


async def test_sigterm_finishes_requests_in_flight_and_exits_0(run_workers: RunWorkers) -> None:
    """Without further output."""
    process = await run_workers("serve", "--service", "fixed:1s", "--rtt", "20ms")
    port = await ready_port(process)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n")
    await writer.drain()
    async with ClientSession() as session:
        while await in_flight(session, port) == 0:  # noqa: ASYNC110 another process sends no event
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0


async def test_fault_command_sets_and_heals_faults(run_workers: RunWorkers) -> None:
    """`workers fault URL` shows the faults, with options replaces them, with --heal ends them."""
    port = await ready_port(await run_workers("serve", "--service", "fixed:1ms"))
    url = f"http://127.0.0.1:{port}"
    for options, slow, status in [
        ((), 1, 200),
        (("--slow", "5", "--fail", "1"), 5, 500),
        (("--slow", "4", "--fail", "1", "--fail-status", "503", "--lasts", "1h", "--unhealthy"), 4, 503),
        (("--heal",), 1, 200),
    ]:
        command = await run_workers("fault", url, *options)
        stdout, stderr = await command.communicate()
        assert (command.returncode, stderr, json.loads(stdout)["slow"]) == (0, b"", slow)
        async with ClientSession() as session, session.get(f"{url}/work") as response:
            assert response.status == status
    command = await run_workers("fault", url, "--pause", "1s", "--after", "1s", "--lasts", "0.5s")
    said = (await command.communicate())[1].decode()
    assert said.endswith(f"{url} answered 422: body: after: must be less than lasts\n"), said


def test_help_imports_no_server() -> None:
    """Commands start fast; what makes the options of `fault` is imported for it alone."""
    code = "from workers.__main__ import cli; import sys; cli(['serve', '-h'], standalone_mode=False)"
    code += "; print({'aiohttp', 'pydantic'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).endswith("\nset()\n")


def test_help_shows_a_default_as_the_user_would_type_it() -> None:
    option = fault_option("nap_time", FieldInfo(default=0.3, annotation=float), is_time=True)
    assert str(option.help).endswith("  [default: 0.3s]")


async def test_sighup_heals_a_worker_that_is_down(run_workers: RunWorkers) -> None:
    """A worker that refuses connections can only be healed by a signal."""
    process = await run_workers("serve", "--service", "fixed:1ms")
    url = f"http://127.0.0.1:{await ready_port(process)}"
    await (await run_workers("fault", url, "--down")).communicate()
    refused = await run_workers("fault", url)
    assert b"Connection refused" in (await refused.communicate())[1]
    assert refused.returncode == 1
    process.send_signal(signal.SIGHUP)
    healed = await run_workers("fault", url)
    assert json.loads((await healed.communicate())[0])["down"] is False


async def test_worker_started_down_listens_after_sighup(run_workers: RunWorkers) -> None:
    """It prints its ready line before, so a signal takes effect without the start of an interpreter."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        process = await run_workers("serve", "--service", "fixed:1ms", "--start-down", "--port", str(port))
        assert process.stdout is not None
        assert f" ready on http://127.0.0.1:{port} ".encode() in await process.stdout.readline()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    process.send_signal(signal.SIGHUP)
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    writer.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("srve",), "srve"),
        (("serve", "--rtt", "fast"), "'--rtt': 'fast' is not a duration such as 350ms"),
        (("serve", "--rtt", "-5ms"), "--rtt"),
        (("serve", "--service", "gamma:20ms"), "'--service': unknown profile 'gamma'"),
        (("serve", "--service", "21-19ms"), "ends before it begins"),
        (("serve", "--slots", "0"), "'--slots': 0 is not in the range x>=1"),
        (("serve", "--queue", "-1"), "--queue"),
        (("serve", "--port", "65536"), "'--port': 65536 is not in the range"),
        (("serve", "--port", "http"), "--port"),
        (("serve", "--close-idle-at-random", "2s"), "--close-idle-at-random"),
        (("serve", "--time-scale", "0"), "--time-scale"),
        (("serve", "--host", "256.1.1.1", "--port", "0"), "--host"),
        (("serve", "--colour", "red"), "--colour"),
        (("serve", "--start-down"), "--start-down"),
        (("serve", "--certificate", __file__), "--certificate goes with --tls"),
        (("inference", "--prefill", "0"), "'--prefill': 0.0 is not in the range"),
        (("inference", "--step", "0ms"), "'--step': 0.0 is not in the range x>0"),
        (("inference", "--max-batch", "5000"), "--max-batch must be from 1 to chunk (2048), not 5000"),
        (("inference", "--max-waiting", "0"), "'--max-waiting': 0 is not in the range x>=1"),
        (("inference", "--busy-status", "500"), "'--busy-status': '500' is not one of"),
        (("inference", "--certificate", __file__), "--certificate goes with --tls"),
        (("fault",), "URL"),
        (("fault", "http://127.0.0.1:1", "--hang", "2"), "'--hang': 2.0 is not in the range 0<=x<=1"),
        (("fault", "http://127.0.0.1:1", "--fail-status", "200"), "'--fail-status': '200' is not one of"),
        (("fault", "http://127.0.0.1:1", "--pause", "2h"), "'--pause': 7200.0 is not in the range"),
        (("fault", "http://127.0.0.1:1", "--heal", "--slow", "2"), "--heal"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], named: str) -> None:
    """The line names the option."""
    assert named in complaint(main, "workers", *arguments)


def test_port_in_use_is_one_line_and_exit_2() -> None:
    """The line names the options and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = complaint(main, "workers", "serve", "--port", address.partition(":")[2])
    assert "--host/--port: " in line
    assert f"{address}: address already in use" in line
