"""Code in the sentences and tables of the documents: its commands can be called, its keys and options exist.

`tests/test_project.py` reads the blocks of code by the same parser.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from balancer.config.loading import Settings
from balancer.config.schema.sidecar import SidecarConfig
from experiments.scenario.scenario import Scenario
from experiments.sweep.grid import Grid
from policies import registry
from tests.support.documentation import (
    PAGES,
    documented,
    group_of,
    groups_and_commands,
    keys_of,
    problem_of,
    text_of,
)
from tests.support.root import ROOT

PROGRAMS = ("balancer", "workers", "experiments", "benchmarks")
READ = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which tells what was
MODELS = (Settings, SidecarConfig, Scenario, Grid)

OF_OTHERS = {
    *("grpc.health.v1", "outlier_detection.cc", "router.cc", "req.url", "p99.9", "127.0.0.1"),
    *("balancer.recording.1", "state.connections.round_trip"),
    *("providers.file", "providers.kubernetesCRD", "tcp.routers", "tls.options.minVersion", "location = /a"),
}
"""Dotted names in code that other projects define, or that are made at run time."""

OPTIONS_OF_OTHERS = {"--build-arg", "--stop-timeout"}
"""Of docker."""

OF_TABLES = {"preset"}
"""Keys that no model has, because they are replaced before it is made."""

FILE = re.compile(r".*\.(?:py|toml|yaml|json|csv|html|md|cc|txt)")


def inline(text: str) -> Iterator[str]:
    """Code between single backticks, outside blocks, on one line."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", prose):
        yield from (" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", paragraph))


@cache
def printed_lines() -> set[str]:
    """Rows of what the balancer prints, which tests/test_operations.py compares with the code, up to a placeholder."""
    rows = re.findall(r"^\| `(balancer [^`]*)`", text_of("docs/operations.md"), re.MULTILINE)
    return {" ".join(row.split()[:3]) for row in rows}


@cache
def known_options() -> set[str]:
    """Options of all commands, and those that other programs of the checkout parse."""
    found = {"--help", *OPTIONS_OF_OTHERS}
    for program in PROGRAMS:
        for _, command in groups_and_commands(group_of(program), program):
            found |= {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    for path in ("policies/contract", "tests"):
        for source in (ROOT / path).rglob("*.py"):
            found |= set(re.findall(r"[(]\"(--[a-z-]+)\"", source.read_text(encoding="utf-8")))
    return found


def wrong_command(code: str) -> str:
    """What is wrong with inline code that calls a program of the project; empty if it calls none."""
    line = re.sub(r"^\.venv/bin/", "", code)
    if called := re.match(r"python -m ([a-z_][\w.]*)(.*)", line):
        if find_spec(called[1]) is None:
            return f"no module {called[1]}"
        line = f"{called[1]}{called[2]}"
    if made := re.fullmatch(r"make ([a-z-]+)((?: [A-Z]+=.+)?)", line):
        named = [f"\n{made[1]}:", *re.findall(r"([A-Z]+)=", made[2])]
        return "" if all(name in text_of("Makefile") for name in named) else "not in Makefile"
    words = line.split()
    is_command = len(words) > 1 and words[0] in PROGRAMS and words[1] != "="
    return problem_of(line) if is_command and " ".join(words[:3]) not in printed_lines() else ""


def wrong_commands(text: str) -> Iterator[str]:
    for code in inline(text):
        option = re.match(r"--[a-z][a-z0-9-]*", code)
        if option and option[0] not in known_options():
            yield f"{code}: no program has this option"
        elif problem := wrong_command(code):
            yield f"{code}: {problem}"


@cache
def known_tables() -> frozenset[str]:
    """Keys of all kinds of files, with the tables that hold them."""
    return with_parents(key for model in MODELS for key, _ in keys_of(model))


@cache
def known_keys() -> frozenset[str]:
    """The same with options of policies and fields of the status."""
    fields = {field.replace("[]", "").removeprefix("endpoints.") for field in documented()}
    return known_tables() | with_parents(fields | {f"policy.{name}" for name in options_of_policies()})


def with_parents(keys: Iterable[str]) -> frozenset[str]:
    parts = [key.split(".") for key in keys]
    return frozenset(".".join(part[:length]) for part in parts for length in range(1, len(part) + 1))


def options_of_policies() -> set[str]:
    return {name for factory in registry.TABLE.values() for name in registry.options_of(factory)}


@cache
def names_in_code() -> frozenset[str]:
    """Names of the packages, tests and examples, without documents, and the names of their files."""
    paths = [path for suffix in ("py", "toml", "yaml") for path in ROOT.glob(f"[a-z]*/**/*.{suffix}")]
    paths.remove(Path(__file__))  # it has wrong ones
    texts = [*(path.read_text(encoding="utf-8") for path in paths), *(str(path) for path in paths)]
    return frozenset(name for text in texts for name in re.findall(r"[\w.]+(?![\w.]|/)", text))


def placeless(key: str) -> str:
    """The key without the name of a cluster, and a knob without the place in a list or the name of a region."""
    return re.sub(r"\.(?:\d+|us)\.", ".", re.sub(r"^clusters\.\w+\.", "", key))


@cache
def tables() -> frozenset[str]:
    """First parts of the keys that have several."""
    return frozenset(key.partition(".")[0] for key in known_keys() if "." in key)


def is_known(name: str) -> bool:
    """Whether a dotted name is a key, or else stands in the code or can be imported."""
    generic = placeless(name)
    if generic in known_keys() or (generic.partition(".")[0] in tables() and not FILE.fullmatch(name)):
        return generic in known_keys()
    return name in names_in_code() or any(can_be_imported(full) for full in (name, f"policies.{name}"))


def can_be_imported(name: str) -> bool:
    try:
        return bool(pkgutil.resolve_name(name))
    except (ImportError, AttributeError, ValueError):
        return False


@cache
def last_parts() -> frozenset[str]:
    """Keys without their tables."""
    return frozenset({key.rpartition(".")[2] for key in known_keys()} | options_of_policies() | OF_TABLES)


def wrong_keys(text: str) -> Iterator[str]:
    """`section.key`, `[section]` and `key = value` that nothing reads."""
    for code in set(inline(text)) - OF_OTHERS:
        table = re.fullmatch(r"\[{1,2}([a-z_0-9.]+)\]{1,2}", code)
        key = re.fullmatch(r"([a-z_][a-z_0-9]*(?:\.\w+)*)( = (?!True|False).+)?", code)
        if (
            (table and placeless(table[1]) not in known_tables())
            or (key and "." in key[1] and not is_known(key[1]))
            or (key and key[2] and "." not in key[1] and key[1] not in last_parts())
        ):
            yield code


@pytest.mark.parametrize("wrong", [wrong_commands, wrong_keys])
def test_commands_options_and_keys_in_sentences_exist(wrong: Callable[[str], Iterator[str]]) -> None:
    found = {page.name: list(wrong(page.read_text(encoding="utf-8"))) for page in READ}
    assert {name: codes for name, codes in found.items() if codes} == {}


WRONG_COMMANDS = """
balancer chek FILE, experiments simulate SCENARIO, balancer endpoints lst, --quik, make tests
experiments run --simulate, workers serve a b, experiments reproduce regions|regoins|all, balancer has stopped
python -m benchmarks calibrate, python -m policies.contracts NAME, make bench PYHTON=x, balancer admin fetch status
"""
WRONG_KEYS = """
timeouts.conect, [healthchecks], [[route]], ordr = 1, clusters.x.timeouts.conect, timeout.connect
health.sumary, origins.nam, balnacer.toml
"""


@pytest.mark.parametrize("code", re.split(r"[,\n]\s*", WRONG_COMMANDS.strip()))
def test_wrong_commands_are_found(code: str) -> None:
    assert list(wrong_commands(f"A sentence with `{code}`, and\n\n```sh\nbalancer chek\n```\n"))


@pytest.mark.parametrize("code", re.split(r"[,\n]\s*", WRONG_KEYS.strip()))
def test_wrong_keys_are_found(code: str) -> None:
    assert list(wrong_keys(f"A sentence with `{code}`."))
