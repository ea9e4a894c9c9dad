"""The frame of all reproductions: options, files, verdicts and exit codes, without measurements; and the client."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from experiments.__main__ import cli
from experiments.errors import STOPPED, BadInputError
from experiments.measured.process_config import serve_argv
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import BOUND_MISSED
from experiments.report import canvas
from experiments.reproduce.client import ClientAnswer, OneCaller
from experiments.reproduce.command import reproduce
from experiments.reproduce.launch import config_text
from experiments.reproduce.reproduction import (
    Publication,
    ReportProgress,
    Reproduction,
    all_met,
    judged,
    run_reproduction,
)
from experiments.stats.comparison import Interval
from tests.support.command_line import complaint
from tests.support.wire import ScriptedWorker, Wire

NAN = float("nan")


@pytest.mark.parametrize(
    ("interval", "is_met"),
    [
        ((1.2, 1.8), True),
        ((0.8, 1.2), None),
        ((1.8, 2.2), None),
        ((0.5, 3.0), None),
        ((0.5, 0.9), False),
        ((2.1, 3.0), False),
        ((1.5, 1.5), True),
        ((NAN, NAN), None),
    ],
)
def test_a_bound_is_judged_where_the_whole_interval_is_on_one_side(
    interval: tuple[float, float], is_met: bool | None
) -> None:
    """Between 1 and 2. On a busy machine a miss is not judged."""
    assert judged(Interval(1.5, *interval, 9), least=1.0, most=2.0) is is_met
    assert judged(Interval(1.5, *interval, 9), least=1.0, most=2.0, is_busy=True) is (is_met or None)


def test_a_bound_of_several_figures() -> None:
    assert all_met([True, True]) is True
    assert all_met([True, None]) is None
    assert all_met([None, False]) is False


class Example(Reproduction):
    """Measures nothing; its single verdict is `is_met`."""

    name = "example"
    document = Publication("a title", "a publisher")
    summary, duration = "Nothing.", "no time"
    is_met: bool | None = True
    is_stopped = False

    def __init__(self, is_quick: bool) -> None:
        self._seed: int | None = None

    def introduction(self) -> str:
        return "nothing is measured"

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        self._seed = seed
        assert folder.name
        progress("nothing")
        if self.is_stopped:
            raise asyncio.CancelledError

    def findings(self) -> Iterator[str]:
        yield "a statement"

    def verdicts(self) -> Iterator[BoundVerdict]:
        yield BoundVerdict("a subject", "a bound", self.is_met, "a figure")

    def figure(self) -> Figure:
        return canvas.blank(1.0)[0]

    def content(self) -> dict[str, Any]:
        return {"seed": self._seed}


@pytest.mark.parametrize(
    ("is_met", "check", "code"),
    [(True, True, 0), (None, True, 0), (False, False, 0), (False, True, BOUND_MISSED)],
)
def test_exit_code_is_1_for_a_missed_bound_with_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_met: bool | None, check: bool, code: int
) -> None:
    monkeypatch.setattr(Example, "is_met", is_met)
    file, plots = tmp_path / "x.json", tmp_path / "a" / "b"  # a folder that is created
    assert run_reproduction(Example, 7, plots=plots, file=file, check=check) == code
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.pop("document") == {"title": "a title", "publisher": "a publisher", "link": ""}
    assert found["bounds"] == [
        {"subject": "a subject", "bound": "a bound", "is_met": is_met, "found": "a figure"}
    ]
    assert (found["name"], found["seed"], found["was_stopped"]) == ("example", 7, False)
    assert (plots / "example.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_reproduction_presents_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Example, "is_stopped", True)
    assert run_reproduction(Example, plots=tmp_path) == STOPPED
    assert "a statement" in capsys.readouterr().out
    assert (tmp_path / "example.png").exists()


@pytest.mark.parametrize("option", ["--plots", "--json"])
def test_files_are_checked_before_measuring(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    plots, file = (below, None) if option == "--plots" else (tmp_path, below / "x.json")
    with pytest.raises(BadInputError, match=option):
        run_reproduction(Example, plots=plots, file=file)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_bad_input_is_one_line_and_exit_2() -> None:
    line = complaint(cli, "experiments", "reproduce", "keepalive", "--plots", "/dev/null/plots")
    assert "--plots: /dev/null/plots" in line


def test_commands() -> None:
    assert set(reproduce.commands) == {
        *("regions", "reuse", "third-party", "keepalive", "headers"),
        *("ab-lies", "els", "robinhood", "prequal", "all"),
    }
    for name, command in reproduce.commands.items():
        found = CliRunner().invoke(command, ["--help"])
        assert "Example" in found.output, name
        assert "--quick" in found.output


def test_the_configuration_of_a_balancer_is_toml() -> None:
    keys = {"seed": 1, "pool": {"preconnect": 2}, "endpoints": [{"id": "a", "keep_alive": False}]}
    extra = {"listen": "127.0.0.1:0", "health_checks": {"first_connect": False}}
    assert tomllib.loads(config_text(keys)) == keys | extra


def test_options_of_a_worker() -> None:
    argv = serve_argv(rtt="30ms", split_head=True, http=None, max_streams=3)
    assert argv[-5:] == ["--rtt", "30ms", "--split-head", "--max-streams", "3"]


async def test_a_client_opens_a_new_connection_after_one_broke() -> None:
    """The first connection is closed in the middle of a response; the second answers twice."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Worker-Service-Time: 0.5\r\n\r\n"
    heads: list[bytes] = []

    async def serve(wire: Wire) -> None:
        while head := await wire.until(b"\r\n\r\n"):
            heads.append(head)
            await wire.send(answer % (len(heads) == 1))
            if len(heads) in (1, 3):
                break

    async with ScriptedWorker(serve) as server:
        client = OneCaller("127.0.0.1", server.port)
        found = [await client.ask("POST") for _ in range(3)]
        client.close()
    assert [answer.status for answer in found] == [0, 200, 200]
    assert [answer.is_ok for answer in found] == [False, True, True]
    assert (found[1].service, len(server.connections)) == (0.5, 2)
    assert b"Content-Length: 0" in heads[0]


@pytest.mark.parametrize(
    ("status", "is_ok"), [(0, False), (199, False), (200, True), (399, True), (400, False), (503, False)]
)
def test_statuses_of_success(status: int, is_ok: bool) -> None:
    assert ClientAnswer(status, 0.0).is_ok is is_ok
