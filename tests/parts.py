"""Run the tests in parts, one after another: python -m tests.parts first|second [--seed N] [--minutes M]

`first` is what `make test` runs; `second`, what `make test-all` adds.
pytest-xdist divides the tests of a part between processes. In the first tier, mypy runs beside them; in the second, the
environments of other interpreters and of the compiled build are made beside the first part. The others are in order of
value: with `--minutes`, a part that does not fit into the time left is not
begun, one that takes three times its usual time is stopped, and the last lines name both.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tests.support.root import ROOT

FIRST, SECOND = ("-m", "not second_tier"), ("-m", "second_tier")
TWO_PROCESSES = ("-n", "2", "--dist", "worksteal")
THREE_PROCESSES = ("-n", "3", "--dist", "worksteal")
"""Where many tests wait for programs that they start."""

BY_FILE = ("-n", "2", "--dist", "loadfile")
"""Where the tests of a file share an expensive build: they run in one process. pytest 9.2 does not keep the groups of
pytest-xdist 3.8."""

COVERED = ("--cov=policies", "--cov=balancer", "--cov-fail-under=90", "--cov-report=term:skip-covered")
COMPILED = ".venv-compiled/bin/python"
FOLDERS = ("faultsim", "simulated", "benchmarks", "deploy")
"""Those with a part of their own in the second tier."""

COMPUTED = ("tests/faultsim", "tests/simulated", "tests/experiments/test_reproduce_simulated.py")
"""Tests of virtual time alone, which the compiled build runs in half of the time."""

BESIDE_BUILDS = (
    "tests/policies",
    "tests/balancer/http/test_linear_expressions.py",
    *(f"tests/experiments/test_{name}.py" for name in ("live_looks", "report_figures")),
)
"""Tests that only compute for long, for the processor that is idle while environments are made."""

WITH_OWN_PART = (*(f"tests/{folder}" for folder in FOLDERS), COMPUTED[-1], *BESIDE_BUILDS)
DATA_PATH = (
    "pipelining", "bounded_memory", "properties", "smuggling", "storms", "timeouts", "tunnel", "admin", "field_names",
    "transports", "http2", "http2_engine", "engine_storms", "floods", "legal_clients", "buffered_requests",
    "buffered_responses", "small_parts", "turns", "trace_context", "traced_requests", "grpc", "route_table",
    "route_conditions", "field_edits", "probe", "recording",
)  # fmt: skip

ARITHMETIC = (
    "best",
    "comparison",
    "estimates",
    "load_curve",
    "report",
    "report_figures",
    "report_log",
    "statistics",
    *("thresholds", "verdict"),
)
INTERPRETED = (
    *("tests/balancer", "tests/workers", "tests/faultsim", "tests/experiments"),
    *(f"--ignore=tests/experiments/test_{name}.py" for name in ARITHMETIC),
    *("tests/simulated/test_simulate_command.py", "tests/simulated/test_simulator_golden.py"),
)
"""Tests of the first tier that another interpreter may fail: what runs on asyncio and what reads and writes files. That
of policies, simulations, statistics and figures is arithmetic, of which the newest interpreter runs that of policies
for their coverage.
"""

EXAMPLES = 400
"""Of each property, several times those of the first tier."""

GRACE_S = 10.0
"""Time to end after SIGINT."""

STUCK_S = 1200.0
"""Time after which a part is stuck, where no time is given: it is stopped, and has failed."""


Command = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Commands that run one after another, and others beside them, one after another, too; `seconds` is how long they
    take on an idle machine with two cores.
    """

    name: str
    seconds: float
    commands: tuple[Command, ...]
    beside: tuple[Command, ...] = ()


def pytest(python: str, *arguments: str) -> Command:
    return (python, "-P", "-m", "pytest", "-q", *arguments)


def with_word(word: str, *places: str, but: Iterable[str] = ()) -> tuple[str, ...]:
    """Files of tests with this word, without those at or below `but`: pytest need not import and collect the others.
    Those of whole programs lie in the uppermost folders and take longest: they come first.
    """
    left_out = [ROOT / place for place in but]
    found = []
    for place in (ROOT / name for name in places):
        for path in sorted(place.rglob("test_*.py")) if place.is_dir() else [place]:
            is_left_out = any(path.is_relative_to(one) for one in left_out)
            if not is_left_out and word in path.read_text(encoding="utf-8"):
                found.append(str(path.relative_to(ROOT)))
    return tuple(sorted(found, key=lambda name: name.count("/")))


def first_tier() -> list[Part]:
    """All of it at once: the last tests to end leave a processor to mypy, or mypy to them."""
    tests = pytest(sys.executable, "tests", *FIRST, *TWO_PROCESSES)
    return [Part("types and tests", 900, (tests,), beside=((sys.executable, "-m", "mypy"),))]


def environment_of(version: tuple[int, ...], path: str) -> Command:
    """What makes the environment of another interpreter."""
    venv = f".venv-{name_of(version)}"
    return ("make", f"VENV={venv}", f"PYTHON={path}", f"{venv}/installed-dev")


def monitors(version: tuple[int, ...]) -> bool:
    """Whether coverage costs little on this version of Python: by `sys.monitoring`."""
    return version >= (3, 12)


def other_interpreters(choice: Choice) -> list[Part]:
    """`INTERPRETED` in an environment of each, without what needs the wall's time; with coverage where it is cheap.
    Tests that are not for coverage then run on their own: a tracer that has been stopped can still hold code objects.
    """
    parts = []
    chosen_tests = "not second_tier and not real_time"
    for version, path in choice.found.items():
        python = f".venv-{name_of(version)}/bin/python"
        run = ("env", "COVERAGE_CORE=sysmon", *pytest(python, *INTERPRETED, *TWO_PROCESSES))
        if monitors(version):
            tested = [
                (*run, "tests/policies", "-m", f"{chosen_tests} and not no_cover", *COVERED),
                (*run, "-m", f"{chosen_tests} and no_cover"),
            ]
        else:
            tested = [(*run, "-m", chosen_tests)]
        parts.append(Part(f"CPython {name_of(version)}", 120, (environment_of(version, path), *tested)))
    return parts


def second_tier(choice: Choice) -> list[Part]:
    """The most valuable first. Coverage is of the first tier's tests, here without long simulations, unless it is
    measured on another interpreter. Environments are made beside the first part, so that both processors have work
    while packages are downloaded and translated to C: its tests do not depend on the wall's time.
    """
    environments = (*(environment_of(*one) for one in choice.found.items()), ("make", "compiled"))
    covered = ("tests/policies", "tests/balancer", "-m", "not second_tier and not no_cover", *COVERED)
    properties = with_word("hypothesis", "tests/balancer", "tests/policies")
    more_examples = (
        *("env", f"STEELYARD_EXAMPLES={EXAMPLES}"),
        *pytest(sys.executable, *properties, "--timeout=300", "-m", "hypothesis and not second_tier"),
        *TWO_PROCESSES,
    )

    def marked(python: str, *places: str, but: Iterable[str] = ()) -> Command:
        return pytest(python, *with_word("second_tier", *places, but=but), *SECOND)

    is_covered = any(map(monitors, choice.found))
    compiled = (
        "tests/policies/test_built_in_options.py",
        "tests/policies/test_compiled_picks.py",
        *(str(path) for name in DATA_PATH for path in (ROOT / "tests/balancer").glob(f"*/test_{name}.py")),
    )
    programs = marked(sys.executable, "tests", but=WITH_OWN_PART)
    computed = (*marked(sys.executable, *BESIDE_BUILDS), *TWO_PROCESSES)
    return [
        Part("more examples", 500, (more_examples, computed), environments),
        Part("programs", 480, ((*programs, *THREE_PROCESSES),)),
        *other_interpreters(choice),
        Part("compiled", 140, (pytest(COMPILED, *compiled, *TWO_PROCESSES),)),
        Part("faultsim and simulated", 130, ((*marked(COMPILED, *COMPUTED), *TWO_PROCESSES),)),
        Part(
            "benchmarks and deploy",
            240,
            ((*marked(sys.executable, "tests/benchmarks"), *TWO_PROCESSES),),
            beside=((*marked(sys.executable, "tests/deploy"), *BY_FILE),),
        ),
        *([] if is_covered else [Part("coverage", 200, (pytest(sys.executable, *covered, *TWO_PROCESSES),))]),
    ]  # fmt: skip


# --- the interpreters that the first tier runs on beside that of .venv: the oldest and the newest that are claimed


DEBIAN = (3, 11, 2)
"""Debian 12's. Before 3.11.4, `raise` within `except*` leaves its exception in a group."""

ASKED = "import ensurepip, sys; assert sys.implementation.name == 'cpython'; print(*sys.version_info[:4])"
"""Prints the version of a CPython that can make a virtual environment."""

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Choice:
    """Interpreters to test on, by version, and what is claimed and absent."""

    found: Mapping[Version, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(f"{name_of(version)} ({path})" for version, path in self.found.items())
        return f"Other interpreters: {shown or 'none'}. Absent: {', '.join(self.absent) or 'none'}."


def name_of(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def claimed() -> list[tuple[int, int]]:
    """Minor versions in the classifiers of pyproject.toml, ascending."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3)\.(\d+)", c) for c in project["classifiers"])
    return sorted((int(one[1]), int(one[2])) for one in found if one)


def choose(installed: dict[Version, str], minors: list[tuple[int, int]], present: Version) -> Choice:
    """The oldest of the oldest minor version and the newest of all, without the one that runs the tests anyway."""
    able = {version: path for version, path in (installed | {present: ""}).items() if version[:2] in minors}
    oldest = min((version for version in able if version[:2] == minors[0]), default=present)
    newest = max(able, default=present)
    absent = [] if oldest[:2] == minors[0] and oldest <= DEBIAN else [name_of(DEBIAN)]
    absent += [] if newest[:2] == minors[-1] else [name_of(minors[-1])]
    found = {version: able[version] for version in (oldest, newest) if version != present}
    return Choice(found, tuple(absent))


def installed() -> dict[Version, str]:
    """Interpreters of the system, of the PATH and of pyenv; of equal ones the first."""
    named = [shutil.which(f"python{name_of(minor)}") for minor in claimed()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [
        "/usr/bin/python3",
        *(name for name in named if name),
        *map(str, sorted(pyenv.glob("*/bin/python"))),
    ]
    found: dict[Version, str] = {}
    for path in paths:
        if (version := version_of(path)) is not None:
            found.setdefault(version, path)
    return found


def version_of(path: str) -> Version | None:
    """The version of a released CPython; None for all else, such as a shim of pyenv that leads nowhere."""
    try:
        ran = subprocess.run(
            [path, "-I", "-c", ASKED], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = ran.stdout.split()
    if ran.returncode != 0 or len(words) != 4 or words[3] != "final":
        return None
    return int(words[0]), int(words[1]), int(words[2])


def chosen() -> Choice:
    return choose(installed(), claimed(), sys.version_info[:3])


# --- running


@dataclass
class Outcome:
    """Names of parts that failed, and of those left out, with the reason."""

    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def run(parts: Sequence[Part], seed: Sequence[str], deadline: float) -> Outcome:
    """Run the parts that fit into the time until the deadline."""
    outcome = Outcome()
    for part in parts:
        began = time.monotonic()
        left = deadline - began
        if part.seconds > left:
            reason = f"takes {part.seconds:.0f} s, {max(left, 0):.0f} s were left"
            outcome.left_out.append(f"{part.name} ({reason})")
            continue
        ends = began + (3 * part.seconds if left < inf else max(STUCK_S, 3 * part.seconds))
        commands = [(*one, *seed) if "pytest" in one else one for one in part.commands]
        with ThreadPoolExecutor() as pool:
            beside = pool.submit(succeed, ends, part.beside)
            is_failed = not succeed(ends, commands)
            is_failed |= not beside.result()
        seconds, is_stopped = time.monotonic() - began, is_failed and time.monotonic() > ends
        if is_stopped and left < inf:
            outcome.left_out.append(f"the rest of {part.name} (stopped after {seconds:.0f} s)")
        elif is_failed:
            outcome.failed.append(part.name)
        verdict = "stopped" if is_stopped else "FAILED" if is_failed else "passed"
        print(f"--- {part.name}: {verdict}, {seconds:.0f} s", flush=True)
    return outcome


def environment() -> dict[str, str]:
    """With bytecode kept in files: tests and the hundreds of programs that they start are compiled once."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def succeed(ends: float, commands: Iterable[Command]) -> bool:
    """Run commands until the first that fails."""
    return all(run_until(ends, one) == 0 for one in commands)


def run_until(ends: float, command: Sequence[str]) -> int:
    """Run a command in a process group of its own, interrupt it at the instant `ends`, and return its exit code."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        interrupt(process)
        return process.wait()
    except KeyboardInterrupt:
        interrupt(process)
        raise


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the process group, upon which pytest ends what its fixtures started.

    If that is ignored, SIGABRT, upon which each process of pytest writes where its threads are.
    """
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.parts")
    parser.add_argument("tier", choices=("first", "second"))
    parser.add_argument("--seed", type=int, help="of examples and faults, which are fixed without it")
    parser.add_argument("--minutes", type=float, default=inf, help="begin only what fits into them")
    given = parser.parse_args()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a shell has background jobs and their children ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    if given.tier == "first":
        parts = first_tier()
    else:
        choice = chosen()
        print(choice, flush=True)
        parts = second_tier(choice)
    seed = () if given.seed is None else (f"--seed={given.seed}",)
    outcome = run(parts, seed, time.monotonic() + 60 * given.minutes)
    print("Seeds: fixed." if given.seed is None else f"Seeds: --seed={given.seed} repeats them.")
    print(f"Not run: {', '.join(outcome.left_out) or 'nothing'}.")
    print(f"Failed: {', '.join(outcome.failed) or 'nothing'}.")
    return bool(outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
