"""`python -m benchmarks cost`: bad input, short runs of every case, absent peers, Ctrl-C. No test depends on speed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.platform import cpu_time
from tests.benchmarks.commands import measured

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.skipif(not cpu_time.is_known_here(), reason="processor time is read on Linux only"),
]

TINY = ("cost", "--blocks", "1", "--duration", "300ms", "--connections", "4")


def test_short_run_without_other_programs(tmp_path: Path) -> None:
    """With an empty PATH, the built-in worker and generator are used, and other proxies are reported as absent."""
    printed, found = measured(tmp_path, *TINY, "--peers", "nginx,envoy", "--check", path=str(tmp_path))
    for words in ("built-in generator", "worker: a minimal one", "absent: nginx", "absent: envoy"):
        assert words in printed
    assert printed.startswith("Python: ")
    (case,), (run,) = found["cases"], found["runs"]
    (proxy,) = case["proxies"]
    assert proxy["peer"] == run["peer"] == "steelyard least-in-flight"
    assert proxy["fault"] == ""
    assert proxy["figure"] == run["figure"] > 0
    assert run["requests"] > 0
    assert set(found["absent"]) == {"nginx", "envoy"}
    assert [bound["is_met"] for bound in found["bounds"]] == [None, None]


@pytest.mark.parametrize("case", ["get1m", "post16k"])
def test_case_is_measured_on_every_installed_peer(case: str, tmp_path: Path) -> None:
    """No proxy answers with an error."""
    _, found = measured(tmp_path, *TINY, "--case", case, "--pin", "one")
    peers = found["cases"][0]["plan"]["peers"]
    assert {run["peer"]: run["fault"] for run in found["runs"]} == dict.fromkeys(peers, "")
    assert {"aiohttp session", "TCP relay"} <= set(peers)
    assert [bound["subject"] for bound in found["bounds"]] == [case]


def test_idle_case(tmp_path: Path) -> None:
    """The number of connections is that of `--connections`; the peers are proxies only."""
    _, found = measured(tmp_path, *TINY, "--case", "idle", "--connections", "40")
    assert {run["fault"] for run in found["runs"]} == {""}
    assert {run["requests"] for run in found["runs"]} == {40}
    assert {run["peer"] for run in found["runs"]} <= {"steelyard least-in-flight", "nginx", "haproxy"}
    assert found["cases"][0]["plan"]["case"]["kind"] == "bytes/connection"


def test_other_build_is_measured_in_the_same_blocks(tmp_path: Path) -> None:
    """Here the other build is this one; the ratio has a verdict."""
    _, found = measured(tmp_path, *TINY, "--peers", "none", "--against", sys.executable)
    assert {run["peer"]: run["fault"] for run in found["runs"]} == {
        "steelyard least-in-flight": "",
        "steelyard least-in-flight (other build)": "",
    }
    assert "the other build" in found["bounds"][0]["bound"]


@pytest.mark.skipif(len(cpu_time.cores()) < 2, reason="needs two cores")
def test_half_case_offers_one_rate_to_all_peers(tmp_path: Path) -> None:
    _, found = measured(tmp_path, *TINY, "--case", "half", "--peers", "nginx")
    assert {run["fault"] for run in found["runs"]} == {""}
    assert len({run["rate"] for run in found["runs"]}) == 1
    assert all(run["requests"] > 0 and run["figure"] > 0 for run in found["runs"])


def test_endpoints_case_has_a_balancer_for_each_size(tmp_path: Path) -> None:
    """Four sizes and one bound; `--connections` applies to all of them."""
    _, found = measured(tmp_path, *TINY, "--case", "endpoints", "--policies", "random")
    assert {run["fault"] for run in found["runs"]} == {""}
    assert len(found["runs"]) == 4
    (bound,) = found["bounds"]
    assert bound["bound"].startswith("steelyard random flat")


def test_tls_case_requires_openssl(tmp_path: Path) -> None:
    """Without openssl every peer is reported as absent."""
    printed, _ = measured(tmp_path, *TINY, "--case", "tls", path=str(tmp_path))
    assert "absent: steelyard least-in-flight (no program 'openssl'" in printed


def test_ctrl_c_shows_results_and_leaves_no_process(tmp_path: Path) -> None:
    """Stopped after its first run: exit code 130, its results are written, and all child processes have ended."""
    file = tmp_path / "bench.json"
    options = (*TINY, "--blocks", "100", "--peers", "relay", "--json", str(file))
    command = [sys.executable, "-m", "benchmarks", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "[1/200" not in process.stdout.readline():
            assert process.poll() is None
        while len(children := cpu_time.descendants(process.pid)) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=40)
    assert process.returncode == 130
    assert "Stopped." in output
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert json.loads(file.read_text(encoding="utf-8"))["was_stopped"]
