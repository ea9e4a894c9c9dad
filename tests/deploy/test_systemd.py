"""The systemd unit: its timeout agrees with the program's grace period, and systemd accepts it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from balancer.config.loading import Settings

UNIT = Path(__file__).resolve().parent.parent.parent / "deploy" / "systemd" / "steelyard.service"
PROGRAM = "/opt/steelyard/bin/balancer"


def service() -> dict[str, str]:
    parser = ConfigParser(interpolation=None, strict=False)  # a key may be given again
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT, encoding="utf-8")
    return dict(parser["Service"])


def test_stop_timeout_is_long_enough() -> None:
    """SIGKILL comes after the balancer's grace period plus 5 s to write the log and exit."""
    timeouts = Settings.model_fields["timeouts"].get_default()
    assert int(service()["TimeoutStopSec"].removesuffix("s")) >= timeouts.shutdown + 5
    assert service()["KillMode"] == "mixed"


def test_reload_sends_sighup() -> None:
    assert service()["ExecReload"] == f"/bin/kill -{signal.SIGHUP.name.removeprefix('SIG')} $MAINPID"


def test_no_restart_after_exit_code_2() -> None:
    """Invalid input is the same a second time."""
    assert (service()["Restart"], service()["RestartPreventExitStatus"]) == ("on-failure", "2")


@pytest.mark.peer
def test_little_is_exposed() -> None:
    """Of 10: what remains is the network, the capability to bind low ports, and what the unit says."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", ran.stdout)
    assert found is not None, ran.stdout + ran.stderr
    assert float(found[1]) < 2


@pytest.mark.peer
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text(encoding="utf-8").replace(PROGRAM, f'"{sys.executable}"'), encoding="utf-8"
    )
    ran = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    complaints = [line for line in ran.stderr.splitlines() if UNIT.name in line]
    assert not complaints
