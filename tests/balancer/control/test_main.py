"""The program: output, errors, shutdown."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from balancer.__main__ import main
from balancer.control.admin.client import AdminClient
from balancer.control.admin.socket_path import found_socket
from balancer.control.admin.status_command import problem_lines
from balancer.errors import ListenFailed
from balancer.process.supervisor import made_directory
from policies import registry
from tests.support.command_line import complaint, run_in_process
from tests.support.programs import Run, needs_full_device, workers
from tests.support.root import ROOT
from tests.support.stage import Stage
from tests.support.wire import Wire, client_of, get, playing, response

SAMPLE = 'policy = "random"\n[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:9"\nregion = "emea"\n'


async def port_of(process: Process) -> int:
    """From the line that reports the listening address."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    match = re.search(r"balancer ready on http://127\.0\.0\.1:(\d+) ", line)
    assert match, line
    return int(match[1])


async def test_serve_until_sigterm(run: Run, stage: Stage) -> None:
    """A line with the port, then forwarding; SIGTERM exits with 0 and no output."""
    worker = await stage.worker(response(b"hello"))
    process = await run("serve", *workers(worker), "--policy", "round-robin")
    client = await client_of(await port_of(process))
    assert (await client.ask(get())).body == b"hello"
    process.send_signal(signal.SIGTERM)
    assert await client.rest() == b""
    stdout, stderr = await process.communicate()
    assert (process.returncode, stderr) == (0, b"")
    assert stdout == b"balancer stopping: 0 in flight\n"
    await client.close()


@needs_full_device
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_output_that_cannot_be_written_is_on_standard_error(
    run: Run, stage: Stage, processes: str
) -> None:
    """A full disk: every line, and the program serves, reloads, restarts its processes and exits with 0."""
    worker = await stage.worker(response(b"hello"))
    full = os.open("/dev/full", os.O_WRONLY)
    process = await run("serve", *workers(worker), "--processes", processes, output=full)
    os.close(full)
    assert process.stderr is not None

    async def line(pattern: str) -> str:
        assert process.stderr is not None
        said = (await process.stderr.readline()).decode()
        found = re.fullmatch(rf"balancer: standard output: No space left on device: {pattern}\n", said)
        assert found, said + (await process.stderr.read()).decode()
        return found[1]

    port = int(await line(r"balancer ready on http://127\.0\.0\.1:(\d+) .*"))
    client = await client_of(port)
    assert (await client.ask(get())).body == b"hello"
    await client.close()
    process.send_signal(signal.SIGHUP)
    await line("balancer (has reloaded)")
    if processes != "1":
        url = f"unix:{found_socket(f'http://127.0.0.1:{port}')}"
        status = await asyncio.to_thread(AdminClient(url).document, "GET", "/-/status")
        os.kill(status["processes"]["answering"][1]["pid"], signal.SIGKILL)
        await line(r"balancer process \d \((\d+)\) was killed by SIGKILL; it is started again.*")
    process.send_signal(signal.SIGTERM)
    await line("balancer (stopping): 0 in flight")
    assert await process.stderr.read() == b""
    assert await process.wait() == 0


async def test_output_whose_reader_has_left_disturbs_nothing(run: Run, stage: Stage) -> None:
    """Also if that of standard error has: a request is answered and the program exits with 0."""
    worker = await stage.worker(response(b"hello"))
    reading, writing = os.pipe()
    process = await run("serve", *workers(worker), output=writing, errors=writing)
    os.close(writing)
    ready = await asyncio.to_thread(os.read, reading, 4096)
    os.close(reading)
    client = await client_of(int(re.findall(rb":(\d+) ", ready)[0]))
    assert (await client.ask(get())).body == b"hello"
    await client.close()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


@needs_full_device
def test_output_of_a_command_onto_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(SAMPLE)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "balancer", "check", str(tmp_path / "b.toml")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    complaint = "balancer: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, complaint)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("check", "--help"), 0, ""),
        (("check", "../absent.toml"), 2, "balancer: cannot read ../absent.toml: No such file or directory\n"),
        (
            ("check", "--worker", "a=http://a", "--policy", "p.py:P"),
            2,
            "balancer: --policy: policy: the working directory of p.py has been removed\n",
        ),
    ],
)
def test_working_directory_that_was_removed(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """As a deployment removes the last release: only what is relative to it fails, in one line."""
    (tmp_path / "release").mkdir()
    begin = f"rmdir {tmp_path / 'release'}; exec {sys.executable} -m balancer {' '.join(words)}"
    done = subprocess.run(
        ["/bin/sh", "-c", begin],
        cwd=tmp_path / "release",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, said)


async def test_admin_option_serves_the_live_page(run: Run, stage: Stage) -> None:
    """The ready line has its address, and / leads to it."""
    worker = await stage.worker(response(b"hello"))
    process = await run("serve", *workers(worker), "--admin", "0")
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    found = re.search(r"\), live page http://127\.0\.0\.1:(\d+)/-/\n$", line)
    assert found, line
    client = await client_of(int(found[1]))
    answer = await client.ask(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (answer.status, answer.value(b"Location")) == (302, b"/-/")
    await client.close()


async def test_sigterm_finishes_requests_in_flight(run: Run, stage: Stage) -> None:
    """A request in flight is answered several sweeps after the signal; new clients are refused."""
    go = asyncio.Event()
    worker = await stage.worker(playing(Wire.request, go, response(b"finished")))
    process = await run("serve", *workers(worker))
    port = await port_of(process)
    client = await client_of(port)
    await client.send(get())
    await stage.eventually(lambda: worker.requests)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"balancer stopping: 1 in flight\n"
    await wait_until_closed(port)
    await asyncio.sleep(0.6)  # the process's own sweeps must not stumble over the closed socket
    go.set()
    answer = await client.response()
    assert (answer.body, answer.value(b"Connection")) == (b"finished", b"close")
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0
    await client.close()


async def wait_until_closed(port: int) -> None:
    """Wait until the port is closed. A connection in the backlog of a socket that is being closed is reset."""
    async with asyncio.timeout(5):
        while True:
            try:
                await (await client_of(port)).close()
            except ConnectionResetError:
                continue
            except ConnectionRefusedError:
                return


async def test_second_sigterm_ends_the_grace_period(run: Run, stage: Stage) -> None:
    """Requests in flight are aborted, which the exit code shows."""
    worker = await stage.worker(playing(Wire.closed))
    process = await run("serve", *workers(worker))
    client = await client_of(await port_of(process))
    await client.send(get())
    await stage.eventually(lambda: worker.received)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"balancer stopping: 1 in flight\n"
    process.send_signal(signal.SIGTERM)
    await client.closed()
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 1
    await client.close()


WORKER = ("--worker", "r=http://127.0.0.1:9")


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = complaint(main, "balancer", "serve", *WORKER, "--port", address.partition(":")[2])
    assert line.startswith("balancer: listen: ")
    assert f"{address}: Address already in use" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", *WORKER, "--policy", "p2x"), "p2x"),
        (("serve",), "--worker"),
        (("serve", "--worker", "http://a:1"), "--worker"),
        (("serve", "--worker", "r=ftp://a:1"), "endpoints.0.address"),
        (("serve", *WORKER, "--port", "99999"), "--port"),
        (("serve", *WORKER, "--admin", "x:y"), "--admin"),
        (("serve", *WORKER, "--polcy", "random"), "--polcy"),
        (("serve", *WORKER, "--processes", "0"), "--processes"),
        (("serve", *WORKER, "--processes", "257"), "processes"),
        (("serve", "--config", "/nonexistent.toml"), "/nonexistent.toml"),
        (("check", "/nonexistent.toml"), "/nonexistent.toml"),
        (("chek",), "chek"),
    ],
)
def test_invalid_arguments(arguments: tuple[str, ...], named: str) -> None:
    line = complaint(main, "balancer", *arguments)
    assert line.startswith("balancer: ")
    assert named in line


@pytest.mark.parametrize(
    ("options", "environment", "listen"),
    [
        ("", {}, "0.0.0.0:9999"),
        ("--port 0", {}, "0.0.0.0:0"),
        ("--host ::1", {}, "[::1]:9999"),
        ("--host ::1 --port 9", {"PORT": "5000"}, "[::1]:9"),
        ("--host 127.0.0.1", {"PORT": "5000"}, "127.0.0.1:5000"),
        ("--port 7", {"BALANCER_LISTEN": "[::1]:8"}, "[::1]:7"),
        ("--port 7", {"BALANCER_LISTEN": "unix:/run/b.sock"}, "127.0.0.1:7"),
    ],
)
def test_host_and_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, environment: dict[str, str], listen: str
) -> None:
    """What is not given is that of the environment or the file."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "b.toml"
    file.write_text('listen = "0.0.0.0:9999"\n[[endpoints]]\nid = "a"\naddress = "http://a:1"\n')
    ran = run_in_process(main, "balancer", "check", str(file), *options.split(), "--print")
    assert re.findall(r'^listen = "(.*?)"', ran.stdout, re.MULTILINE)[:1] == [listen]


@pytest.mark.parametrize("option", ["--host ::1", "--port 80"])
@pytest.mark.parametrize("listen", ['"nonsense"', "7"])
def test_host_or_port_over_an_invalid_address(tmp_path: Path, option: str, listen: str) -> None:
    """The error names the file, not the option; as for every key, an option for the whole replaces what is there."""
    file = tmp_path / "b.toml"
    file.write_text(f'listen = {listen}\n[[endpoints]]\nid = "a"\naddress = "http://a:1"\n')
    assert f"{file}:1: listen: " in complaint(main, "balancer", "check", str(file), *option.split())
    ran = run_in_process(main, "balancer", "check", str(file), "--host", "::1", "--port", "80")
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("program", "words", "completion"),
    [
        ("balancer", "s", "serve"),
        ("balancer", "serve --policy ro", "round-robin"),
        ("experiments", "s", "show"),
        ("workers", "s", "serve"),
    ],
)
def test_shell_completion(
    program: str,
    words: str,
    completion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"_{program.upper()}_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"{program} {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(f"{program}.__main__").main()
    assert f"plain,{completion}" in capsys.readouterr().out.splitlines()


def test_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Examples and the names of all policies."""
    monkeypatch.setattr("sys.argv", ["balancer", "serve", "--help"])
    main()
    output = capsys.readouterr().out
    assert "balancer serve --config balancer.toml" in output
    assert all(name in output for name in registry.known())


def test_check(tmp_path: Path) -> None:
    """Prints the meaning of a file or its error, and does not listen."""
    path = tmp_path / "balancer.toml"
    path.write_text(SAMPLE)
    done = run_in_process(main, "balancer", "check", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(part in done.stdout for part in ("policy random", "127.0.0.1:8080", "http://127.0.0.1:9"))
    path.write_text(SAMPLE.replace("emea", "e m e a"))
    assert "endpoints.0.region" in complaint(main, "balancer", "check", str(path))


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("admin.listen = '127.0.0.1:8080'", "admin.listen: is the address of listen, too"),
        (
            "admin.listen = ':81'\nadmin.token = 'sixteen-or-more-of-them'\nlisteners.a.listen = ':81'",
            "admin.listen: is the address of listeners.a.listen, too",
        ),
        ("admin.listen = '127.0.0.1:8081'", None),
        ("log.path = 'no/access.log'", "log.path: there is no directory FOLDER/no on this machine"),
        ("log.path = 'access.log'", None),
        ("log = { path = 'no/access.log', access = 'off' }", None),
    ],
)
def test_check_warns_of_what_ends_serve(tmp_path: Path, text: str, warning: str | None) -> None:
    path = tmp_path / "balancer.toml"
    path.write_text(f"{text}\n{SAMPLE}")
    path.chmod(0o600)
    lines = run_in_process(main, "balancer", "check", str(path)).stdout.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert warnings == ([f"warning: {warning.replace('FOLDER', str(tmp_path))}"] if warning else [])


def test_no_directory_for_the_sockets_of_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a file system that is read-only."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(ListenFailed, match=r"^TMPDIR: cannot make a directory for .*: No such file"):
        made_directory()


def test_status_names_what_must_be_corrected() -> None:
    """Of the configuration in force, and of the access log; nothing if all is well."""
    reload = {"problem": "policy: unknown", "waiting": ["listen", "seed"]}
    log = {"dropped": 0, "lost": 2, "written": 5}
    assert problem_lines({"reload": reload, "access_log": log}) == [
        "the last reload was refused: policy: unknown",
        "only the next start changes: listen, seed",
        "access log: 0 entries dropped, 2 lost",
    ]
    log["lost"] = 0
    assert problem_lines({"reload": {"problem": None, "waiting": []}, "access_log": log}) == []
    assert problem_lines({"access_log": None}) == []
    shared: dict[str, str | None] = {"store": "redis://s:6379", "problem": "Connection refused"}
    tracing = {"exporting": False, "lost": 4}
    assert problem_lines({"shared": shared, "tracing": tracing}) == [
        "redis://s:6379 is lost: Connection refused",
        "tracing: the collector takes no spans; 4 lost",
    ]
    shared["problem"], tracing["exporting"] = None, True
    assert problem_lines({"shared": shared, "tracing": tracing}) == []


async def test_port_variable_and_worker_option(run: Run, stage: Stage, tmp_path: Path) -> None:
    """$PORT and a file: all addresses, that port; `--worker` replaces the file's endpoints."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    path = tmp_path / "balancer.toml"
    path.write_text(SAMPLE)
    worker = await stage.worker(response(b"here"))
    process = await run("serve", "--config", str(path), *workers(worker)[:2], PORT=str(port))
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert f"http://0.0.0.0:{port} " in line
    client = await client_of(port)
    assert (await client.ask(get())).body == b"here"
    await client.close()


async def test_more_clients_than_descriptors(run: Run, stage: Stage) -> None:
    """64 descriptors, 200 concurrent clients, three requests each: clients wait, and no request fails."""
    worker = await stage.worker(response(b"fine"))
    process = await run("serve", *workers(worker), descriptors=64)
    port = await port_of(process)
    answered = 0

    async def visit() -> None:
        nonlocal answered
        client = await client_of(port)
        for _ in range(3):
            answer = await client.ask(get())
            assert (answer.status, answer.body) == (200, b"fine")
            answered += 1
            if answer.value(b"Connection") == b"close":
                assert await client.rest() == b""
                await client.close()
                client = await client_of(port)
        await client.close()

    await asyncio.gather(*(visit() for _ in range(200)))
    assert answered == 600
    process.send_signal(signal.SIGTERM)
    _, stderr = await process.communicate()
    assert (process.returncode, stderr) == (0, b"")
