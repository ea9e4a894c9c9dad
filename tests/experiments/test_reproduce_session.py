"""What all reproductions have in common: options, files, verdicts and exit codes, with nothing measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from experiments.errors import BadInputError, FleetFailedError
from experiments.report import canvas
from experiments.reproduce import launch
from experiments.reproduce.api_calls import all_of
from experiments.reproduce.client import Answer, Client
from experiments.reproduce.command import reproduce
from experiments.reproduce.launch import BalancerFile
from experiments.reproduce.quantities import figure
from experiments.reproduce.session import Choices, Session, Verdict, run_session, with_choices
from experiments.terminal import BOUND_MISSED, STOPPED


class Told(Session):
    """Says what it was told to say."""

    def __init__(self, is_met: bool | None, is_stopped: bool = False) -> None:
        super().__init__()
        self._is_met, self._is_stopped = is_met, is_stopped
        self.seeds: list[int] = []

    def introduction(self) -> str:
        return "nothing is measured"

    async def run_plan(self, seed: int, folder: Path) -> None:
        self.seeds.append(seed)
        assert folder.name
        if self._is_stopped:
            raise asyncio.CancelledError

    def present(self) -> list[Verdict]:
        return [Verdict(self._is_met, "a bound")]

    def figures(self) -> Mapping[str, Callable[[], Figure]]:
        return {"nothing": partial(lambda: canvas.blank(1.0)[0])}

    def content(self) -> dict[str, Any]:
        return {"found": "nothing"}


@pytest.mark.parametrize(
    ("is_met", "check", "code"),
    [(True, True, 0), (None, True, 0), (False, False, 0), (False, True, BOUND_MISSED)],
)
def test_only_a_missed_bound_is_told_by_the_exit_code_when_asked(
    tmp_path: Path, is_met: bool | None, check: bool, code: int
) -> None:
    file = tmp_path / "x.json"
    assert run_session(Told(is_met), Choices(plots=tmp_path, file=file, check=check)) == code
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found == {"found": "nothing", "verdicts": [{"met": is_met, "words": "a bound"}]}
    assert (tmp_path / "nothing.png").read_bytes().startswith(b"\x89PNG")


def test_a_sitting_that_is_stopped_presents_what_there_is(tmp_path: Path) -> None:
    assert run_session(Told(True, is_stopped=True), Choices(plots=tmp_path)) == STOPPED
    assert (tmp_path / "nothing.png").exists()


def test_nothing_is_measured_for_files_that_cannot_be_written(tmp_path: Path) -> None:
    sitting = Told(True)
    with pytest.raises(BadInputError, match="--plots"):
        run_session(sitting, Choices(plots=tmp_path / "absent"))
    with pytest.raises(BadInputError, match="--json"):
        run_session(sitting, Choices(plots=tmp_path, file=tmp_path / "absent" / "x.json"))
    assert sitting.seeds == []


def test_a_command_gets_its_choices_and_its_own_options(tmp_path: Path) -> None:
    heard: list[object] = []

    @click.command()
    @click.option("--own", default=3)
    @with_choices
    def command(choices: Choices, own: int) -> int:
        heard.extend((choices, own))
        return 0

    arguments = ["--seed", "7", "--quick", "--own", "4", "--plots", str(tmp_path)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert heard == [Choices(7, True, tmp_path, None, False), 4]


def test_all_knows_every_source() -> None:
    assert set(reproduce.commands) == {"regions", "reuse", "third-party", "keepalive", "headers", "all"}
    for name, command in reproduce.commands.items():
        found = CliRunner().invoke(command, ["--help"])
        assert "Example" in found.output, name
        assert "--quick" in found.output


def test_a_units_file_is_toml() -> None:
    file = BalancerFile({"seed": 1}, {"pool": {"preconnect": 2}}, [{"id": "a", "keep_alive": False}])
    assert file.text.splitlines() == [
        *('listen = "127.0.0.1:0"', "seed = 1", "", "[pool]", "preconnect = 2", ""),
        *("[[endpoints]]", 'id = "a"', "keep_alive = false"),
    ]


def test_options_of_a_worker() -> None:
    argv = launch.worker_argv(rtt="30ms", split_head=True, http=None, max_streams=3)
    assert argv[-5:] == ["--rtt", "30ms", "--split-head", "--max-streams", "3"]


async def test_the_first_failure_of_many_is_raised() -> None:
    async def fail(words: str) -> None:
        raise FleetFailedError(words)

    with pytest.raises(FleetFailedError, match="first"):
        await all_of([fail("first"), fail("second")])


async def test_a_line_goes_on_after_a_connection_that_broke() -> None:
    """The first connection is closed instead of an answer; the second answers, and again."""
    answers = [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Worker-Service-Time: 0.5\r\n\r\n"]
    heads = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = answers[min(1, len(heads))]
        while head := await reader.readuntil(b"\r\n\r\n"):
            heads.append(head)
            if not answer:
                break
            writer.write(answer)
            if len(heads) == 3:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    line = Client(*server.sockets[0].getsockname()[:2])
    found = [await line.ask("POST", "/x", b"") for _ in range(3)]
    line.close()
    server.close()
    assert [answer.status for answer in found] == [0, 200, 200]
    assert [answer.is_ok for answer in found] == [False, True, True]
    assert (found[1].service, line.opened) == (0.5, 2)
    assert b"Content-Length: 0" in heads[0]


def test_an_answer_that_refuses_is_none() -> None:
    assert [Answer(status, 0.0).is_ok for status in (199, 200, 399, 400, 503)] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_figures_below_a_hundred_have_a_digit_more() -> None:
    assert [figure(value) for value in (99.94, 100.4, 14522.0)] == ["99.9", "100", "14522"]
