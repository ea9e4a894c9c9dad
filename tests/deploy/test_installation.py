"""`pip install` of the tracked files: compiled with a C compiler, otherwise pure with its reason, and both alike."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from experiments.platform.ports import free_ports
from tests.deploy.installation import (
    Environment,
    clean_environment,
    copy_tracked_files,
    quick_compiler,
    script,
    shorten_hot_path,
    skip_without_index,
)
from tests.deploy.programs import Program, commands_on_free_ports, get
from tests.support.root import ROOT

pytestmark = [pytest.mark.second_tier, pytest.mark.timeout(900)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PURE_LINE = re.compile(r"steelyard: the pure build is installed: .*")
NO_COMPILER = "no C compiler works here"
INTERPRETER = f"{platform.python_implementation()} {platform.python_version()}"
LOST = "Unsupported default attribute value"
"""Of mypyc, which only warns; the attribute is missing from the compiled class."""
PACKAGES = ("policies", "balancer", "workers", "experiments")
SHORT_RUN = shlex.split(
    "experiments run steady --simulated --policies random,round-robin --blocks 3 --duration 5"
)
SHORT_SWEEP = shlex.split(
    "experiments sweep --quick --scenarios steady --policies random,round-robin --workers 2"
)


@dataclass(frozen=True)
class Installed:
    """An environment, pip's output, and the packages that were there when pip had ended."""

    environment: Environment
    output: str
    packages: set[str]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sources")
    skip_without_index(tmp_path_factory.mktemp("download"))
    copy_tracked_files(target)
    return target


@pytest.fixture(scope="module")
def programs_without_compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH without any program."""
    return str(tmp_path_factory.mktemp("no-programs"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Installed:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    place = tmp_path_factory.mktemp("compiled")
    return install(place, sources, ".", CC=quick_compiler(place / "cc", tmp_path_factory))


@pytest.fixture(scope="module")
def pure(
    tmp_path_factory: pytest.TempPathFactory, sources: Path, programs_without_compiler: str
) -> Installed:
    return install(tmp_path_factory.mktemp("pure"), sources, ".", PATH=programs_without_compiler)


def install(place: Path, sources: Path, what: str, **variables: str) -> Installed:
    environment = Environment.create(place)
    done = environment.pip_install("--verbose", what, cwd=sources, variables=variables)
    assert done.returncode == 0, done.stdout
    return Installed(environment, done.stdout, environment.packages())


def reinstall(environment: Environment, sources: Path, **variables: str) -> list[str]:
    """Build and install again, without dependencies; returns the lines that state a pure build."""
    words = ("--verbose", "--force-reinstall", "--no-deps", ".")
    done = environment.pip_install(*words, cwd=sources, variables=variables)
    assert done.returncode == 0, done.stdout
    return PURE_LINE.findall(done.stdout)


def version_line(build: str) -> str:
    return f"balancer {PROJECT['version']}, {build}, {INTERPRETER}, ngh2 {version('ngh2')}"


# --- with a C compiler


def test_installation_compiles(compiled: Installed) -> None:
    assert compiled.environment.version_line == version_line("compiled build")
    assert PURE_LINE.findall(compiled.output) == []
    assert LOST not in compiled.output
    assert len(extensions_of(compiled.environment)) > len(PACKAGES)


def test_sources_have_nothing_built_in_them(compiled: Installed, sources: Path) -> None:
    """Generated C and objects would enter the next wheel."""
    left = [path for kind in ("*.c", "*.o", "*.so") for path in sources.rglob(kind)]
    assert left == []


def test_core_has_what_forwarding_needs_and_no_more(compiled: Installed) -> None:
    """The laboratory, and mypy with which the package is compiled, stay out."""
    core = {Requirement(need).name.lower() for need in PROJECT["dependencies"]}
    extras = {
        Requirement(need).name.lower()
        for needs in PROJECT["optional-dependencies"].values()
        for need in needs
    }
    assert core <= compiled.packages
    assert compiled.packages & (extras - core - {"steelyard"} | {"dask", "pillow", "mypy", "librt"}) == set()


@pytest.mark.parametrize("build", ["compiled", "pure"])
def test_installed_balancer_forwards(build: str, request: pytest.FixtureRequest) -> None:
    environment = request.getfixturevalue(build).environment
    with running(environment) as (ready, port):
        assert ready.rstrip().endswith(f"{build} build)")
        answer = get(port, "/work")
        assert (answer.status, answer.fields["X-Worker-Name"]) == (200, "eu-0")
        assert status(environment, port)["build"] == build
        metrics = environment.run("balancer", "admin", "get", "metrics", "--url", url(port)).stdout
        assert f'build="{build}"' in metrics


def test_every_line_of_the_procfile_runs(compiled: Installed, sources: Path) -> None:
    """As a platform runs it: by a shell, in the checkout, with PORT set."""
    commands, variables = commands_on_free_ports((ROOT / "Procfile").read_text(encoding="utf-8"))
    port = next(free_ports(1))
    path = f"{compiled.environment.place / 'bin'}:/usr/bin:/bin"
    environment = clean_environment(**variables, PATH=path, PORT=str(port))
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(Program(["/bin/sh", "-c", command], environment, sources))
            for name, command in commands.items()
        }
        ready = {name: program.line() for name, program in started.items()}
        assert all(" ready on " in line for line in ready.values()), ready
        assert re.search(rf"http://0\.0\.0\.0:{port} .*compiled build\), live page ", ready["web"])
        answer = get(port, "/work")
        assert answer.status == 200
        assert answer.fields["X-Worker-Name"] in {f"{name}-0" for name in started if name != "web"}
        assert started["web"].stop() == 0


def test_check_accepts_the_example(compiled: Installed) -> None:
    done = compiled.environment.run("balancer", "check", str(ROOT / "examples" / "balancer.toml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "policy steelyard" in done.stdout


def test_both_builds_describe_policies_and_options_alike(compiled: Installed, pure: Installed) -> None:
    environments = [compiled.environment, pure.environment]
    helps = [environment.run("balancer", "serve", "--help").stdout for environment in environments]
    assert helps[0] == helps[1]
    assert re.search(r"^  steelyard +Least expected cost", helps[0], re.MULTILINE)
    listed = [policies(environment) for environment in environments]
    assert listed[0] == listed[1]
    assert "steelyard" in json.dumps(listed[0])


# --- pure


def test_hidden_compiler_gives_the_pure_build_with_one_line(pure: Installed) -> None:
    assert PURE_LINE.findall(pure.output) == [f"steelyard: the pure build is installed: {NO_COMPILER}"]
    assert pure.environment.version_line == version_line(f"pure build ({NO_COMPILER})")


def test_missing_laboratory_is_one_line_whose_remedy_works(
    pure: Installed, sources: Path, tmp_path: Path
) -> None:
    """In the checkout, here as a pure build on demand; without Dask, which only clusters need."""
    environment = pure.environment
    for command in (SHORT_RUN, SHORT_SWEEP):
        done = environment.run(*command, "--out", str(tmp_path / "absent"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "experiments: needs numpy: pip install '.[lab]' in the checkout\n"
    assert not (tmp_path / "absent").exists()
    program, verb, what, *_ = shlex.split(done.stderr.partition("numpy: ")[2])
    assert (program, verb) == ("pip", "install")
    remedied = environment.pip_install("--verbose", what, cwd=sources, variables={"STEELYARD_PURE": "1"})
    assert remedied.returncode == 0, remedied.stdout
    reason = "STEELYARD_PURE=1 was set"
    assert PURE_LINE.findall(remedied.stdout) == [f"steelyard: the pure build is installed: {reason}"]
    found = environment.run("balancer", "--version").stdout.strip()
    assert found == version_line(f"pure build ({reason})")
    assert environment.packages() & {"dask", "distributed", "pyarrow", "pytest"} == set()
    check_laboratory(environment, tmp_path)


def check_laboratory(environment: Environment, results: Path) -> None:
    """A simulated comparison and a sweep end with their reports."""
    ran = environment.run(*SHORT_RUN, "--out", str(results / "run"))
    assert ran.returncode == 0, ran.stderr
    assert (results / "run" / "report.html").stat().st_size > 0
    swept = environment.run(*SHORT_SWEEP, "--out", str(results / "swept.sqlite"))
    assert swept.returncode == 0, swept.stderr
    assert (results / "swept.sqlite").stat().st_size > 0


def test_missing_headers_give_the_pure_build(pure: Installed, sources: Path, tmp_path: Path) -> None:
    """A compiler that works, but cannot include Python.h."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    compiler = script(
        tmp_path / "cc",
        'for word; do shift; case "$word" in -I*) ;; *) set -- "$@" "$word" ;; esac; done; exec cc "$@"',
    )
    reason = "Python's C headers are missing"
    lines = reinstall(pure.environment, sources, CC=compiler)
    assert lines == [f"steelyard: the pure build is installed: {reason}"]
    assert pure.environment.run("balancer", "--version").stdout.strip() == version_line(
        f"pure build ({reason})"
    )


def test_compiler_that_fails_midway_gives_the_pure_build(pure: Installed, tmp_path: Path) -> None:
    """It compiles the trial file and one of two modules; the objects of that do not enter the package."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    sources = tmp_path / "sources"
    copy_tracked_files(sources)
    shorten_hot_path(sources, "policies/clock.py", "policies/facts.py")
    compiler = script(
        tmp_path / "cc",
        'case "$*" in *tried.c*|*clock*) exec cc "$@" ;; esac; echo "cc: no space left" >&2; exit 1',
    )
    (line,) = reinstall(pure.environment, sources, CC=compiler)
    assert "the C compiler failed (" in line
    assert f"{compiler}' failed with exit code 1" in line
    found = pure.environment.run("balancer", "--version").stdout.strip()
    assert found == version_line(f"pure build ({line.partition('installed: ')[2]})")
    assert extensions_of(pure.environment) == []


def extensions_of(environment: Environment) -> list[str]:
    """Extensions of this package; the others' are not below the four packages and not of mypyc."""
    (site,) = (environment.place / "lib").glob("python*/site-packages")
    ours = [path for name in PACKAGES for path in (site / name).rglob("*.so")]
    return [path.name for path in (*ours, *site.glob("*__mypyc.*.so"))]


# --- strict


def test_strict_build_fails_with_one_message(sources: Path, tmp_path: Path) -> None:
    environment = Environment.create(tmp_path / "environment")
    variables = {"STEELYARD_COMPILE": "1", "CC": "false"}
    done = environment.pip_install("--no-deps", ".", cwd=sources, variables=variables)
    assert done.returncode != 0
    lines = [line.strip() for line in done.stdout.splitlines() if "steelyard: " in line]
    assert lines == [f"steelyard: cannot compile: {NO_COMPILER}"]
    assert "Traceback" not in done.stdout
    assert "steelyard" not in environment.packages()


# --- running programs


@contextmanager
def running(environment: Environment) -> Iterator[tuple[str, int]]:
    """An emulated worker and a balancer before it: the balancer's ready line and its port."""
    variables = clean_environment()
    at, port = free_ports(2)
    worker = [environment.program("workers"), *f"serve --region eu --name eu-0 --port {at}".split()]
    balancer = [environment.program("balancer"), *f"serve --worker eu={url(at)} --port {port}".split()]
    with Program(worker, variables) as first, Program(balancer, variables) as second:
        assert "ready" in first.line()
        yield second.line(), port


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def status(environment: Environment, port: int) -> Any:
    return json.loads(environment.run("balancer", "status", "--json", "--url", url(port)).stdout)


def policies(environment: Environment) -> Any:
    """All policies with their options, as the control interface lists them."""
    with running(environment) as (_, port):
        return json.loads(environment.run("balancer", "admin", "get", "policies", "--url", url(port)).stdout)
