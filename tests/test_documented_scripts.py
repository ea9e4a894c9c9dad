"""The script of docs/write-a-policy.md and the quick start of the README, run as written from an empty directory.

Blocks of the page are taken by the comment before their fence, those of the README by their indentation. The ports
8080, 9001, 9002 and 9180 are replaced by free ones. In the README the installation is left out, because the environment
has it, and the campaign of a quarter of an hour is ended by Ctrl-C; nothing else is changed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from experiments.platform.ports import free_ports
from tests.support.documentation import block_of, text_of
from tests.support.root import ROOT

README = text_of("README.md")
PORTS = ("8080", "9001", "9002", "9180")

block = partial(block_of, "docs/write-a-policy.md")

LONG = re.compile(r"^(experiments run) +#", re.MULTILINE)
"""The campaign with all policies."""

INTERRUPTED = r"env --default-signal=INT timeout --preserve-status -s INT 30 \1 || [ $? = 130 ] #"


def quick_start() -> str:
    """The indented commands of the README's quick start."""
    section = README.partition("## Quick start\n")[2].partition("\n## ")[0]
    lines = [line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")]
    assert sum("pip install " in line for line in lines) == 1
    script = "\n".join(line for line in lines if "pip install " not in line) + "\n"
    assert len(LONG.findall(script)) == 1
    return LONG.sub(INTERRUPTED, script)


def with_ports(script: str, ports: list[int]) -> str:
    """The script with the documented ports replaced."""
    for documented, free in zip(PORTS, ports, strict=True):
        script = re.sub(rf"\b{documented}\b", str(free), script)
    return script


def run_script(script: str, folder: Path, port: str, patience: float = 100.0) -> tuple[int, str]:
    """Run a script for at most `patience` seconds in a process group of its own, which is ended with it; returns its
    exit code and output.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {
        "PATH": path,
        "PORT": port,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(folder),
    }
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            ["bash", "-eu", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(patience)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        output.seek(0)
        return code, output.read().decode()


def test_every_curl_waits_for_the_port() -> None:
    """A program that was started in the line before does not listen yet."""
    scripts = (quick_start(), block("in thirty seconds"), text_of("docs/workers.md"))
    lines = [
        line for script in scripts for line in script.splitlines() if re.match(r" *curl .*http://127", line)
    ]
    assert len(lines) >= 3
    assert not [line for line in lines if "--retry-connrefused" not in line or "--retry " not in line]


def test_example_is_the_policy_of_the_page() -> None:
    assert text_of("examples/my_policy.py").partition('"""\n\n')[2] == block("my_policy.py")


@pytest.mark.second_tier
@pytest.mark.timeout(150)
def test_policy_in_thirty_seconds(tmp_path: Path) -> None:
    (tmp_path / "my_policy.py").write_text(block("my_policy.py"), encoding="utf-8")
    ports = [*free_ports(len(PORTS))]
    code, output = run_script(
        with_ports(block("in thirty seconds") + block("change it"), ports), tmp_path, str(ports[0])
    )
    assert code == 0, output
    assert "It keeps all 11 rules." in output
    for scenario in ("steady", "one-slow-worker", "heavy-tail"):
        assert (tmp_path / "results" / scenario / "report.html").stat().st_size > 0
    assert re.findall(r"^ Tempered ", output, re.MULTILINE)
    versions = re.findall(r"my_policy\.py, version (\w{12}), loaded", output)
    assert len(versions) == 2
    assert versions[0] != versions[1]
    assert re.search(r"^policy Tempered, fallback picks 0$", output, re.MULTILINE), output


SERVICE = """
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204, self.headers["X-Forwarded-For"])
        self.end_headers()


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_it(balancer: str) -> None:
    with urllib.request.urlopen(balancer) as response:
        assert (response.status, response.reason) == (204, "127.0.0.1")
"""


@pytest.mark.second_tier
def test_fixture_for_tests_of_a_service(tmp_path: Path) -> None:
    """It serves requests, and nothing is left of it."""
    code = block_of("docs/operations.md", "in a test") + SERVICE
    (tmp_path / "test_service.py").write_text(code, encoding="utf-8")
    status, output = run_script(
        f"{sys.executable} -m pytest -q -W error -p no:asyncio test_service.py", tmp_path, "0"
    )
    assert status == 0, output
    assert "1 passed" in output


@pytest.mark.second_tier
@pytest.mark.timeout(240)
def test_first_experiment(tmp_path: Path) -> None:
    here = partial(block_of, "docs/first-experiment.md")
    (tmp_path / "my_policy.py").write_text(block("my_policy.py"), encoding="utf-8")
    (tmp_path / "mine.toml").write_text(here("mine.toml"), encoding="utf-8")
    script = here("ask about it") + here("change one thing")
    code, output = run_script(script, tmp_path, "0", patience=230.0)
    assert code == 0, output
    assert "Run steelyard: the slowest 1 % of requests are" in output
    for name in ("mine", "more", "own"):
        assert (tmp_path / "results" / name / "report.html").stat().st_size > 0


@pytest.mark.second_tier
@pytest.mark.timeout(900)
def test_quick_start_of_the_readme(tmp_path: Path) -> None:
    ports = [*free_ports(len(PORTS))]
    code, output = run_script(with_ports(quick_start(), ports), tmp_path, str(ports[0]), patience=840.0)
    assert code == 0, output
    assert "Traceback" not in output
    assert re.search(r"^HTTP/1.1 200 OK\r?$", output, re.MULTILINE), output
    assert re.search(r"^X-Worker-Name: ", output, re.MULTILINE | re.IGNORECASE), output
    assert "policy steelyard, fallback picks 0" in output
    assert "# TYPE steelyard_requests_total counter" in output
    assert re.search(r"^Simulated\. Run \S+: the slowest 1 %", output, re.MULTILINE), output
    reports = {path.parent.name.partition("-2")[0] for path in (tmp_path / "results").glob("*/report.html")}
    assert {"region-brownout", "regions"} <= reports
