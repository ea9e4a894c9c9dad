"""The image: properties of its Dockerfile, a local run of its instructions, and its health check.

There may be no container runtime, so the instructions are parsed and run without one.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from balancer.healthcheck import PATIENCE
from experiments.platform.ports import free_ports
from tests.deploy.dockerfile import LocalBuild, context, instructions, one, stages
from tests.deploy.installation import quick_compiler, skip_without_index
from tests.deploy.programs import Program
from tests.support.root import ROOT
from tests.support.sources import modules, nodes_of

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
BUILD, FINAL = stages(DOCKERFILE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("policies", "balancer", "workers")
"""Packages that run in a container; experiments do not."""


# --- properties


def test_user_is_not_root() -> None:
    """As a number: with runAsNonRoot Kubernetes rejects a name."""
    user, group = one(FINAL, "USER").text.split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_signals_reach_the_balancer() -> None:
    """Exec form: no shell between the container's first process and the balancer."""
    entry, command = one(FINAL, "ENTRYPOINT").text, one(FINAL, "CMD").text
    assert (entry[0], command[0]) == ("[", "[")
    assert one(FINAL, "ENTRYPOINT").words() == ["balancer"]


def test_the_last_stage_is_small() -> None:
    """A slim Python and the environment; it runs nothing and copies no sources."""
    assert "-slim" in one(FINAL, "FROM").text
    assert not [i for i in FINAL if i.name == "RUN"]
    assert one(FINAL, "COPY").words() == ["--from=build", "/opt/steelyard", "/opt/steelyard"]


def test_both_stages_have_the_same_python() -> None:
    """A virtual environment refers to its interpreter, and the extension is built for that version."""
    first, last = (one(stage, "FROM").text.split()[0] for stage in (BUILD, FINAL))
    assert last == first.replace("-", "-slim-")


def test_every_version_is_pinned() -> None:
    """All installs use constraints.txt, which has every named package; what the image keeps has these versions, and
    hashes of its files."""
    environment = [word for i in BUILD if i.name == "ENV" for word in i.words()]
    assert "PIP_CONSTRAINT=/build/constraints.txt" in environment
    pinned = dict(line.lower().replace("_", "-").split("==") for line in lines_of("constraints.txt"))
    assert wanted() | {"mypy", "setuptools"} <= set(pinned)
    hashed = "\n".join(lines_of("requirements-image.txt")).replace("\\\n", " ").splitlines()
    found = [
        re.fullmatch(r"([a-z\d-]+)==(\S+) (;.* )?( +--hash=sha256:[\da-f]{64} ?)+", line) for line in hashed
    ]
    kept = {one[1]: one[2] for one in found if one}
    assert None not in found
    assert wanted() <= set(kept)
    assert kept.items() <= pinned.items()


def test_the_documented_http2_library_is_that_of_the_pinned_package() -> None:
    """Which libnghttp2 is in a release of ngh2 is known from its source; a new release has to be looked up anew."""
    (pin,) = [line for line in lines_of("constraints.txt") if line.startswith("ngh2==")]
    assert f"which ngh2 {pin.removeprefix('ngh2==')} carries" in (ROOT / "docs/http2.md").read_text(
        encoding="utf-8"
    )


def test_image_installs_exactly_the_imported_packages() -> None:
    """With the project's version bounds."""
    assert wanted() == {name.replace("_", "-") for name in imported()} - extras()
    assert set(PARTS.values()) <= wanted()


NAMESPACES = {f"opentelemetry-{name}": "opentelemetry" for name in ("sdk", "exporter-otlp-proto-http")}
"""Packages that are imported under a name that several share."""


PARTS = {"pydantic_core": "pydantic"}
"""Packages that another one pins, and whose documented types are imported from there."""


def extras() -> set[str]:
    """Packages that users ask for by name, imported only on demand."""
    needs = [
        need for name, needs in PROJECT["optional-dependencies"].items() if name != "dev" for need in needs
    ]
    names = {Requirement(need).name for need in needs} - {"steelyard"}
    return {NAMESPACES.get(name, name) for name in names}


def wanted() -> set[str]:
    """The packages that the project's core depends on."""
    return {Requirement(need).name for need in PROJECT["dependencies"]}


def imported() -> set[str]:
    """Third-party packages that the image's packages import, including uvloop, imported in a function."""
    ours = {*PACKAGES, "experiments"}
    found = set()
    for path in modules(*PACKAGES).values():
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in names}
    return found - ours - set(sys.stdlib_module_names) - {"mypy_extensions", *PARTS}


def lines_of(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_build_context_is_what_the_instructions_copy() -> None:
    """Nothing secret or large is sent to the builder, and nothing is missing."""
    files = context(ROOT, (ROOT / ".dockerignore").read_text(encoding="utf-8"))
    sent = {path.parts[0] for path in files}
    copied = {source for i in BUILD if i.name == "COPY" for source in i.words()[:-1]}
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = {pattern.rstrip("*") for pattern in setuptools["packages"]["find"]["include"]}
    assert sent == copied
    assert packages == {*PACKAGES, "experiments"} <= copied
    assert not [path for path in files if path.suffix in (".pyc", ".pem", ".key", ".so")]


def test_unknown_instruction_is_rejected() -> None:
    with pytest.raises(AssertionError, match="ONBUILD"):
        instructions("FROM x\nONBUILD RUN true\n")


# --- instructions, run locally


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context, as .dockerignore leaves it."""
    target = tmp_path_factory.mktemp("image") / "context"
    for path in context(ROOT, (ROOT / ".dockerignore").read_text(encoding="utf-8")):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target / path)
    return target


@pytest.mark.second_tier
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("build", "pure"), [("pure", "1"), ("compiled", "0")])
def test_instructions_build_a_balancer_that_serves(
    source: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, build: str, pure: str
) -> None:
    """In a clean directory, every RUN and COPY, then the image's command: it serves, its health check passes, and
    SIGTERM ends it with 0. The compiled build comes last, when the tests of installation have compiled most objects.
    """
    if build == "compiled" and shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    skip_without_index(tmp_path)
    image = LocalBuild(tmp_path / "root", source, {"PURE": pure})
    image.environment["CC"] = quick_compiler(tmp_path / "cc", tmp_path_factory)
    image.run(BUILD)
    image.run(FINAL)
    port = next(free_ports(1))
    path = tmp_path / "balancer.toml"
    path.write_text('[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:9"\n', encoding="utf-8")
    command = [*one(FINAL, "ENTRYPOINT").words(), *one(FINAL, "CMD").words()[:-1], str(path)]
    environment = image.environment | {"PORT": str(port)}
    bin_ = Path(image.here("/opt/steelyard/bin"))
    assert not (bin_ / "pip").exists()
    with Program([str(bin_ / command[0]), *command[1:]], environment) as balancer_program:
        assert "balancer ready on http://0.0.0.0:" in balancer_program.line()
        asked = [str(bin_ / "balancer"), "status", "--json"]
        output = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
        assert json.loads(output)["build"] == build
        assert health_check(environment, str(bin_ / "python")) == 0
        assert balancer_program.stop() == 0


# --- health check


@pytest.fixture
def balancer_program() -> Iterator[tuple[Program, dict[str, str]]]:
    """A balancer whose only worker does not answer, and the environment of the container."""
    environment = {**os.environ, "PORT": str(next(free_ports(1)))}
    worker = "a=http://127.0.0.1:9"
    with Program([sys.executable, "-m", "balancer", "serve", "--worker", worker], environment) as program:
        assert "ready" in program.line()
        yield program, environment


def health_check(environment: dict[str, str], python: str = sys.executable) -> int:
    """The exit code of the image's own health check."""
    words = one(FINAL, "HEALTHCHECK").text.partition("CMD ")[2]
    command = instructions(f"CMD {words}")[0].words()
    assert command[0] == "python"
    return subprocess.run(
        [python, *command[1:]], env=environment, capture_output=True, check=False
    ).returncode


def test_health_check_fails_after_the_balancer_has_stopped(
    balancer_program: tuple[Program, dict[str, str]],
) -> None:
    program, environment = balancer_program
    assert health_check(environment) == 0
    assert program.stop() == 0
    assert health_check(environment) == 1


def test_health_check_times_out_before_the_runtime() -> None:
    """The probe gives up by itself before the runtime does."""
    options = dict(re.findall(r"--([a-z-]+)=(\d+)", one(FINAL, "HEALTHCHECK").text))
    assert PATIENCE < int(options["timeout"]) <= int(options["interval"])


@pytest.mark.peer
def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not here")
    ran = subprocess.run(
        [hadolint, "--ignore", "DL3013", ROOT / "Dockerfile"], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout
