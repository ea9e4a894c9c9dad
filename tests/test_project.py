"""Documentation and metadata agree with the code: commands, options, keys, defaults, versions, links."""

from __future__ import annotations

import json
import math
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from balancer.config.loading import Settings
from balancer.configuration import load
from balancer.syntax.printable import with_digits
from benchmarks.harness.cases import CASES
from policies import contract, registry
from tests import parts
from tests.support import tables
from tests.support.command_line import run_in_process
from tests.support.documentation import (
    EXAMPLE,
    KEYS,
    PAGES,
    group_of,
    groups_and_commands,
    inner_commands,
    problem_of,
    text_of,
)
from tests.support.root import ROOT

PACKAGES_WITH_COMMANDS = ("balancer", "workers", "experiments")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def commands_of(package: str) -> dict[str, click.Command]:
    """Commands by name, imported."""
    return inner_commands(group_of(package))


# --- commands


@pytest.mark.parametrize("package", [*PACKAGES_WITH_COMMANDS, "benchmarks"])
def test_every_package_runs_as_a_module_and_shows_its_commands(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 2, as no command is given."""
    monkeypatch.delitem(sys.modules, f"{package}.__main__", raising=False)
    ran = run_in_process(lambda: runpy.run_module(package, run_name="__main__"), package)
    assert ran.returncode == 2
    assert "\nCommands:\n" in ran.stdout + ran.stderr
    assert len((ran.stdout + ran.stderr).splitlines()) > 8


@pytest.mark.parametrize("package", PACKAGES_WITH_COMMANDS)
def test_every_package_has_a_console_script_that_names_its_version(package: str) -> None:
    assert PROJECT["project"]["scripts"][package] == f"{package}.__main__:main"
    script = Path(sys.executable).with_name(package)
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"{package} {version('steelyard')}")


WITH_EXAMPLES = {
    "balancer": "serve check endpoints probe sidecar",
    "workers": "serve fault",
    "experiments": "run reproduce compare capacity live what-if sweep show report",
    "benchmarks": "cost storm rolling slow-clients fidelity calibration",
}


@pytest.mark.parametrize(
    ("package", "command"),
    [(package, one) for package, those in WITH_EXAMPLES.items() for one in those.split()],
)
def test_help_shows_an_example(package: str, command: str) -> None:
    described = commands_of(package)[command]
    with click.Context(described, info_name=f"{package} {command}") as context:
        text = described.get_help(context)
    assert re.search(rf"Examples?:\s+(python -m )?{package} {command} ", text)


@pytest.mark.parametrize("package", [*PACKAGES_WITH_COMMANDS, "benchmarks"])
def test_help_is_not_squeezed(package: str) -> None:
    """Lists of commands have whole sentences, and lines of examples stay lines."""
    for path, command in groups_and_commands(group_of(package), package):
        with click.Context(command, info_name=path) as context:
            lines = [line.strip() for line in command.get_help(context).splitlines()]
        summaries = lines[lines.index("Commands:") :] if "Commands:" in lines else []
        assert not [line for line in summaries if line.endswith("...")], path
        blocks = f"{command.help or ''}\n\n{command.epilog or ''}".split("\n\n")
        listed = [block for block in blocks if "\b" in block or block.lstrip().startswith("Example")]
        missing = {line.strip("\b ") for block in listed for line in block.splitlines()} - {"", *lines}
        assert not missing, path


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("package", [*PACKAGES_WITH_COMMANDS, "benchmarks"])
def test_help_fits_the_terminal(package: str, width: int) -> None:
    """Except examples, which are indented, since a line of a shell must not be broken."""
    for path, command in groups_and_commands(group_of(package), package):
        context = click.Context(command, info_name=path, terminal_width=width, max_content_width=width)
        with context:
            lines = command.get_help(context).splitlines()
        assert not [line for line in lines if len(line) > width and not line.startswith("    ")], path


def command_lines(page: str) -> Iterator[str]:
    """Lines of indented or fenced code that call a command of the project, continuations joined."""
    for line in re.sub(r"\\\n +", "", page).splitlines():
        found = re.match(
            r"(?:    +|BALANCER_\S+ |\.venv/bin/|python -m )*((?:balancer|workers|experiments|benchmarks) [a-z]+\b.*)",
            line,
        )
        if found and (line.startswith("    ") or "--" in line):
            yield re.split(r" #|   +(?!-)| &$", found[1])[0]


def test_commands_in_documents_exist() -> None:
    """And take the options, arguments and choices that are written."""
    lines = [line for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))]
    wrong = {line: problem for line in lines if (problem := problem_of(line))}
    assert not wrong


def test_readme_shows_commands() -> None:
    assert len(list(command_lines(text_of("README.md")))) >= 5


def test_nothing_is_to_be_installed_by_the_name_of_the_project() -> None:
    """No release exists, so the name in an index of packages would be that of whoever registers it."""
    packages = (*PACKAGES_WITH_COMMANDS, "policies", "benchmarks")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    files += [*PAGES, EXAMPLE, ROOT / "Dockerfile", ROOT / "Makefile"]
    named = re.compile(r"steelyard\[\w+\]|pip3? install [^\n`]*\bsteelyard\b")
    assert not [path for path in files if named.search(path.read_text(encoding="utf-8"))]


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, page.name
    assert {"demo", "test", "lint", "serve", "clean", "help"} <= targets


def test_ci_is_a_strict_script() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")


def test_workflows_pin_actions_and_test_every_claimed_python() -> None:
    """Also the oldest patch release that is supported."""
    workflows = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob(".github/workflows/*.yml")}
    actions = re.findall(r"uses: (\S+)", "\n".join(workflows.values()))
    assert [action for action in actions if not re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", action)] == []
    tested = yaml.safe_load(workflows["ci"])["jobs"]["first-tier"]["strategy"]["matrix"]["python"]
    claimed = [parts.DEBIAN, *parts.claimed()[1:]]
    assert {parts.name_of(each) for each in claimed} <= set(tested)


def test_an_inner_group_without_a_command_shows_its_help() -> None:
    shown = CliRunner().invoke(group_of("balancer"), ["endpoints"])
    assert shown.exit_code == 2
    assert "\nCommands:\n" in shown.output


# --- documents


def test_the_readme_is_short() -> None:
    assert text_of("README.md").count("\n") <= 120


def test_the_version_is_the_same_everywhere() -> None:
    top = re.search(r"^## (\d\S*)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert top is not None
    assert top[1] == PROJECT["project"]["version"] == version("steelyard")
    assert set(re.findall(r"steelyard:([\d.]+)", text_of("docs/operations.md"))) == {top[1]}


def test_links_in_documents_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_code_that_documents_name_exists() -> None:
    """Paths of files, and dotted names of modules and of what they define."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md")
    package = r"(?:policies|balancer|workers|experiments|benchmarks|tests)"
    for path in re.findall(rf"`({package}/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(rf"`({package}(?:\.[A-Za-z_]\w*)+)`", text):
        if not name.endswith((".toml", ".yaml")):  # a user's file
            assert pkgutil.resolve_name(name), name


def test_every_policy_has_a_section() -> None:
    """Alone or with similar ones; policies by key are on a page of their own."""
    pages = text_of("docs/policies.md") + text_of("docs/policies-keyed.md")
    headings = " ".join(re.findall(r"^##+ (.*)$", pages, re.MULTILINE))
    assert sorted(re.findall(r"`([a-z0-9-]+)`", headings)) == sorted(registry.TABLE)


def test_the_policy_in_the_readme_keeps_the_contract() -> None:
    found = re.search(r"```python\n(.*?class (\w+).*?)```", text_of("README.md"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    contract.check(names[found[2]])


def test_the_page_on_performance_states_the_length_of_a_measurement() -> None:
    stated = re.search(r"# get, (\d+) blocks of (\d+) s", text_of("docs/performance.md"))
    get = CASES["get"]
    assert stated is not None
    assert (int(stated[1]), float(stated[2])) == (get.blocks, get.seconds)


# --- dependencies


def pins() -> dict[str, list[str]]:
    """Name -> exact pins in constraints.txt."""
    found: dict[str, list[str]] = {}
    for line in text_of("constraints.txt").splitlines():
        if line and not line.startswith("#"):
            pin = re.fullmatch(r"([A-Za-z0-9._-]+)==\S+( ; .+)?", line)
            assert pin is not None, f"not an exact pin: {line}"
            found.setdefault(canonicalize_name(pin[1]), []).append(line)
    return found


def requirements() -> list[str]:
    """All requirements of pyproject.toml but those of its own extras."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = [PROJECT["project"]["dependencies"], *extras]
    return [need for group in groups for need in group if not need.startswith("steelyard[")]


def test_every_dependency_has_one_exact_version() -> None:
    assert {canonicalize_name(Requirement(need).name) for need in requirements()} <= set(pins())
    assert all(len(lines) == 1 or all(" ; " in line for line in lines) for lines in pins().values())


def test_every_dependency_is_listed_once_with_bounds_that_its_pin_is_within() -> None:
    names = [canonicalize_name(Requirement(need).name) for need in requirements()]
    assert sorted(names) == sorted(set(names))
    for requirement in requirements():
        found = Requirement(requirement)
        assert {clause.operator for clause in found.specifier} == {">=", "<"}, requirement
        assert_pinned_within(found)


def test_build_requirements_agree_with_the_pins() -> None:
    """`pip install .` and `make compiled` make the same code: both use the pinned mypy and Cython."""
    build = {found.name: found for found in map(Requirement, PROJECT["build-system"]["requires"])}
    assert set(build) == {"setuptools", "mypy", "cython", "httptools"}
    assert [f"mypy{build['mypy'].specifier}"] == pins()["mypy"]
    assert [f"cython{build['cython'].specifier}"] == pins()["cython"]
    core = {found.name: found for found in map(Requirement, PROJECT["project"]["dependencies"])}
    assert build["httptools"].specifier == core["httptools"].specifier
    for found in build.values():
        assert_pinned_within(found)
    (setuptools,) = (need for need in PROJECT["build-system"]["requires"] if need.startswith("setuptools"))
    assert f"'{setuptools}'" in text_of("Makefile"), "make compiled builds without isolation"


def assert_pinned_within(requirement: Requirement) -> None:
    for line in pins()[canonicalize_name(requirement.name)]:
        pinned = Requirement(line)
        (clause,) = pinned.specifier
        assert requirement.specifier.contains(clause.version), f"{line} is outside {requirement}"


# --- configuration


@pytest.mark.parametrize("page", tables.TABLES)
def test_generated_tables_are_as_the_code_says(page: str) -> None:
    assert text_of(page) == tables.rewritten(page), "run python -m tests.support.tables"


def test_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORT", raising=False)
    settings = load(EXAMPLE, {})
    assert settings.listen == Settings.model_fields["listen"].default
    settings.policy.make(Random(0))


def test_the_example_mentions_every_key_with_its_default() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text == tables.completed(text), "run python -m tests.support.tables"
    begin, end = text.index("# [routes.auth]"), text.index("# [routes.request_fields]")
    keys = re.findall(r"^# (\[.*\]|[a-z_]+ =)", text[begin:end], re.M)
    added = tables.completed(text[:begin] + text[end:])
    begin, end = added.index("# [routes.auth]"), added.index("# [routes.request_fields]")
    assert re.findall(r"^# (\[.*\]|[a-z_]+ =)", added[begin:end], re.M) == keys
    assert '# path = "/check"                      # path, with a query if one is wanted' in added
    wrong = {
        key: value
        for key, (number, value) in tables.shown(text.splitlines()).items()
        if text.splitlines()[number].startswith("# ")
        and tables.default_of(KEYS[key]) not in ("–", "required")
        and json.loads(tables.default_of(KEYS[key]).strip("`")) != value
    }
    assert not wrong


def test_a_new_key_stands_in_the_example_as_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    field = Field(default=None, description="requests | most of them; see [Retries](#retries)", examples=[9])
    monkeypatch.setitem(KEYS, "retry.new", field)
    assert tables.lines_of("retry.new") == [f"{'# new = 9':38} # most of them; default: none"]


def test_the_procfile_starts_the_workers_of_the_example() -> None:
    (first, web), *others = (line.split(": ", 1) for line in text_of("Procfile").splitlines())
    assert first == "web"  # honcho gives $PORT to the first, $PORT + 100 to the next and so on
    assert web == "exec balancer serve --config examples/balancer.toml --admin 9180"
    started = set()
    for _, line in others:
        words = shlex.split(line)
        assert words[:3] == ["exec", "workers", "serve"]  # exec: signals reach the program, not a shell
        given = dict(zip(words[3::2], words[4::2], strict=True))
        started.add((given["--name"], given["--region"], f"http://127.0.0.1:{given['--port']}"))
    assert started == {(e.id, e.region, e.address) for e in load(EXAMPLE, {}).endpoints}


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (12345, 4, "12345"), (1234.5, 3, "1234"), (999.96, 4, "1000"), (999.6, 3, "1000"), (99.94, 3, "99.9"),
        (100, 2, "100"), (9.96, 2, "10"), (0.5, 3, "0.5"), (0, 3, "0"), (-1234.5, 3, "-1234"), (math.inf, 3, "inf"),
    ],
)  # fmt: skip
def test_numbers_have_no_exponent(number: float, digits: int, text: str) -> None:
    assert with_digits(number, digits) == text


@pytest.mark.parametrize("package", ["balancer", "benchmarks", "experiments", "workers"])
def test_no_message_formats_large_numbers_with_an_exponent(package: str) -> None:
    """`.3g` prints 1234 as 1.23e+03. Six digits are for bounds of histograms; `float(…)` rounds."""
    found = [
        f"{file}: {line.strip()}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"\{[^{}]*:\.[1-5]g\}", line) and "float(f" not in line
    ]
    assert found == []
