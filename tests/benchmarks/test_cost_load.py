"""Reports of wrk are parsed, and the built-in generator prints the same format."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.harness.cases import CASES
from benchmarks.harness.closed_load import ClosedLoop, Load, LoadOutcome, parsed
from experiments.errors import FleetFailedError

CLEAN = """Running 3s test @ http://127.0.0.1:8080/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.09ms    1.53ms  29.77ms   98.05%
    Req/Sec    10.44k     1.17k   11.87k    50.00%
  31391 requests in 3.10s, 1.49MB read
Requests/sec:  10126.13
Transfer/sec:      1.48MB
"""


def test_report_without_errors() -> None:
    found = parsed(CLEAN)
    assert found == LoadOutcome(requests=31391, rate=10126.13)
    assert found.fault == ""


def test_errors_are_counted() -> None:
    lines = "  Socket errors: connect 1, read 20, write 0, timeout 3\n  Non-2xx or 3xx responses: 7\nRequests/sec:"
    found = parsed(CLEAN.replace("Requests/sec:", lines))
    assert (found.bad_status, found.socket_errors) == (7, 24)
    assert "7 non-2xx" in found.fault


def test_run_without_responses_is_invalid() -> None:
    assert parsed(CLEAN.replace("31391 requests", "0 requests")).fault


def test_output_that_is_no_report_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="no report: unable to connect"):
        parsed("unable to connect to 127.0.0.1:1 Connection refused\n")


def test_command_line_of_wrk(tmp_path: Path) -> None:
    """Duration in whole seconds; a body requires a script."""
    plain = Load(CASES["get"], 64, "/bin/wrk", tmp_path).wrk_argv(8080, 0.3)
    assert plain[plain.index("--duration") + 1] == "1s"
    assert plain[-1] == "http://127.0.0.1:8080/"
    assert "--script" not in plain
    secure = Load(CASES["tls"], 64, "/bin/wrk", tmp_path).wrk_argv(8080, 3)
    assert secure[-1] == "https://127.0.0.1:8080/"
    post = Load(CASES["post16k"], 64, "/bin/wrk", tmp_path).wrk_argv(8080, 3)
    script = Path(post[post.index("--script") + 1]).read_text(encoding="utf-8")
    assert 'wrk.method = "POST"' in script
    assert 'string.rep("x", 16384)' in script


def test_request_of_the_built_in_generator() -> None:
    load = ClosedLoop(8080, "POST", "/p", body=3, connections=1, seconds=1.0, is_tls=False)
    assert load.request == b"POST /p HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Length: 3\r\n\r\nxxx"


async def test_port_without_a_server_gives_socket_errors(tmp_path: Path) -> None:
    load = Load(CASES["get"], 2, None, tmp_path)
    found = await load.run(1, 0.1, nullcontext)
    assert found == LoadOutcome(requests=0, rate=0.0, socket_errors=2)
