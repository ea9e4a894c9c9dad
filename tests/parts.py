"""Run the tests in parts, two at a time: python -m tests.parts first|second [--seed N] [--minutes M]

`first` is what `make test` runs; `second`, what `make test-all` adds, begins with the first tier on other interpreters.
The parts of the second tier are in order of value: with `--minutes`, a part that does not fit into the time left is not
begun, one that takes three times its usual time is stopped, and the last lines name both. A part shows its output when
it ends, whether others have failed or not.
No part may need a port or a file that another takes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

from tests.interpreters import Choice, chosen, name_of

ROOT = Path(__file__).resolve().parent.parent
FIRST, SECOND = ("-m", "not second_tier"), ("-m", "second_tier")
COMPILED = ".venv-compiled/bin/python"
FOLDERS = ("balancer", "policies", "experiments", "simulated", "benchmarks", "faultsim")
REST = ("tests", *(f"--ignore=tests/{folder}" for folder in (*FOLDERS, "workers", "deploy")))
REJECTIONS = "tests/simulated/test_rejections_end.py"
INSTALLATION = "tests/deploy/test_installation.py"
DATA_PATH = (
    "pipelining", "bounded_memory", "properties", "smuggling", "storms", "timeouts", "tunnel", "admin", "field_names",
    "transports", "http2", "http2_engine", "engine_storms", "floods", "legal_clients", "buffered_requests",
    "buffered_responses", "small_parts", "turns", "trace_context", "traced_requests", "grpc", "route_table",
)  # fmt: skip

GRACE = 10.0
"""Seconds to end after SIGINT."""

STUCK = 1200.0
"""Seconds after which a part is stuck, where no time is given: it is stopped, and has failed."""


@dataclass(frozen=True)
class Part:
    """Commands that run one after another; `seconds` is how long they take on an idle machine with two cores."""

    name: str
    seconds: float
    commands: tuple[tuple[str, ...], ...]
    is_alone: bool = False


def pytest_part(name: str, seconds: float, *arguments: str, is_alone: bool = False) -> Part:
    return Part(name, seconds, (pytest(sys.executable, *arguments),), is_alone)


def pytest(python: str, *arguments: str) -> tuple[str, ...]:
    return (python, "-P", "-m", "pytest", "-q", *arguments)


def first_tier() -> list[Part]:
    """The longest first, so that both cores end together; the workers' times are compared with theory, so alone."""
    return [
        pytest_part("workers", 0, "tests/workers", *FIRST, is_alone=True),
        *(pytest_part(folder, 0, f"tests/{folder}", *FIRST) for folder in FOLDERS),
        pytest_part("deploy", 0, "tests/deploy", *FIRST),
        pytest_part("rest", 0, *REST, *FIRST),
    ]


def other_interpreters(choice: Choice) -> list[Part]:
    """The first tier in an environment of each, without what needs the wall's time. All are made before, one by one,
    because an installation writes into the checkout.
    """
    venvs = {version: f".venv-{name_of(version)}" for version in choice.found}
    made = {
        version: ("make", f"VENV={venv}", f"PYTHON={choice.found[version]}", f"{venv}/installed-dev")
        for version, venv in venvs.items()
    }
    tier = ("tests", "-m", "not second_tier and not real_time")
    alone = [Part("other environments", 100 * len(made), tuple(made.values()), is_alone=True)] if made else []
    return alone + [
        Part(f"CPython {name_of(version)}", 600, (made[version], pytest(f"{venv}/bin/python", *tier)))
        for version, venv in venvs.items()
    ]


def second_tier() -> list[Part]:
    """The most valuable first. Coverage is of the first tier's tests, without long simulations."""
    covered = ("tests/policies", "tests/balancer", "-m", "not second_tier and not no_cover")
    compiled = (
        "tests/policies/test_built_in_options.py",
        "tests/policies/test_compiled_picks.py",
        *(str(path) for name in DATA_PATH for path in (ROOT / "tests/balancer").glob(f"*/test_{name}.py")),
    )
    return [
        Part("compiled", 360, (("make", "compiled"), pytest(COMPILED, *compiled))),
        pytest_part("policies and balancer", 420, "tests/policies", "tests/balancer", *SECOND),
        pytest_part("faultsim", 60, "tests/faultsim", *SECOND),
        pytest_part("experiments", 300, "tests/experiments", *SECOND),
        pytest_part("simulated", 140, "tests/simulated", f"--ignore={REJECTIONS}", *SECOND),
        pytest_part("benchmarks", 220, "tests/benchmarks", *SECOND),
        pytest_part("rest", 210, *REST, *SECOND),
        pytest_part(
            "coverage", 360, *covered,
            "--cov=policies", "--cov=balancer", "--cov-fail-under=90", "--cov-report=term:skip-covered",
        ),
        pytest_part("installation", 300, INSTALLATION, *SECOND),
        pytest_part("rejections", 920, REJECTIONS, *SECOND),
        pytest_part("images", 600, "tests/deploy", f"--ignore={INSTALLATION}", *SECOND),
    ]  # fmt: skip


class Runner:
    """Runs parts until the deadline. `failed` and `left_out` are names, the latter with the reason."""

    def __init__(self, seed: int | None, deadline: float) -> None:
        self._seed = () if seed is None else (f"--seed={seed}",)
        self._deadline = deadline
        self._terminal = Lock()
        self.failed: list[str] = []
        self.left_out: list[str] = []

    def run(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.is_alone:
                self._run_part(part)
        beside = iter([part for part in parts if not part.is_alone])
        taking = Lock()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: self._take(beside, taking), range(2)))

    def _take(self, parts: Iterator[Part], taking: Lock) -> None:
        while True:
            with taking:
                part = next(parts, None)
            if part is None:
                return
            self._run_part(part)

    def _run_part(self, part: Part) -> None:
        began = time.monotonic()
        left = self._deadline - began
        if part.seconds > left:
            self.left_out.append(f"{part.name} (takes {part.seconds:.0f} s, {max(left, 0):.0f} s were left)")
            return
        is_limited = left < inf
        ends = began + (3 * part.seconds if is_limited else max(STUCK, 3 * part.seconds))
        output, code = "", 0
        for command in part.commands:
            seed = self._seed if "pytest" in command else ()
            text, code = run_until(ends, (*command, *seed))
            output += text
            if code != 0:
                break
        seconds, is_stopped = time.monotonic() - began, code != 0 and time.monotonic() > ends
        if is_stopped and is_limited:
            self.left_out.append(f"the rest of {part.name} (stopped after {seconds:.0f} s)")
        elif code != 0:
            self.failed.append(part.name)
        verdict = "stopped" if is_stopped else "FAILED" if code else "passed"
        with self._terminal:
            print(f"{output}--- {part.name}: {verdict}, {seconds:.0f} s", flush=True)


def run_until(ends: float, command: Sequence[str]) -> tuple[str, int]:
    """Run a command, interrupt it at the instant `ends`, and return its output and exit code."""
    with TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            interrupt(process)
        code = process.wait()
        output.seek(0)
        return output.read().decode(errors="replace"), code


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Send SIGINT, upon which pytest ends what its fixtures started.

    If that is ignored, SIGABRT, upon which pytest writes where each of its threads is.
    """
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.parts")
    parser.add_argument("tier", choices=("first", "second"))
    parser.add_argument("--seed", type=int, help="of examples and faults, which are fixed without it")
    parser.add_argument("--minutes", type=float, default=inf, help="begin only what fits into them")
    given = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell has background jobs ignore it, and their children
    runner = Runner(given.seed, time.monotonic() + 60 * given.minutes)
    if given.tier == "first":
        runner.run(first_tier())
    else:
        choice = chosen()
        print(choice, flush=True)
        runner.run(other_interpreters(choice) + second_tier())
    print("Seeds: fixed." if given.seed is None else f"Seeds: --seed={given.seed} repeats them.")
    print(f"Not run: {', '.join(runner.left_out) or 'nothing'}.")
    print(f"Failed: {', '.join(runner.failed) or 'nothing'}.")
    return bool(runner.failed)


if __name__ == "__main__":
    sys.exit(main())
