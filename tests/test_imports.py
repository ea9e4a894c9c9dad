"""Imports between packages and between folders, what `policies` may not use, and the length of files.

It reads sources and imports none of them, so a forbidden import is found even where it works.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.sources import PACKAGES, modules, nodes_of, tree_of

SOURCES = modules()

ALLOWED: dict[str, tuple[str, ...]] = {
    "policies": (),
    "balancer": ("policies",),
    "workers": (),
    "experiments": (
        *("policies", "workers.alarm", "workers.durations", "workers.errors", "workers.fault_client"),
        *("workers.faults", "workers.service", "workers.slots", "workers.inference.engine"),
        "balancer.upstream.http1.idle_timeout",
        "balancer.control.admin.client",
        "balancer.control.admin.socket_path",
        "balancer.control.admin.access",
        "balancer.syntax.networks",
        "balancer.control.admin.page.document",
        "balancer.control.admin.page.sampler",
        "balancer.control.admin.page.window",
        *("balancer.errors", "balancer.tools.probe.target"),
        "balancer.cluster.wait_queue",
        "balancer.http.h1.internal_fields",
        "balancer.build",
        "balancer.command_group",
        "balancer.syntax.printable",
        "balancer.syntax.urls",
        "balancer.config.documents",
        *("balancer.config.schema.health", "balancer.config.schema.pool"),
        *("balancer.config.schema.queue", "balancer.config.schema.section"),
        *("balancer.config.schema.retries", "balancer.config.schema.limits"),
    ),
    "benchmarks": (
        "policies",
        "balancer",
        "experiments",
        "workers.alarm",
        "workers.durations",
        "workers.service",
    ),
}
"""Package -> what it may import of other packages, which stand before it: a whole package, or one module of it."""

FORBIDDEN_IN_POLICIES = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "selectors", "signal", "subprocess", "threading"),
        "http",
        "io",
        "os",
        "pathlib",
        "secrets",
        "select",
        "shutil",
        "socket",
        "ssl",
        "tempfile",
        "urllib",
        *("datetime", "uuid"),
    }
)
"""I/O, concurrency, wall clocks, and randomness that cannot be seeded."""

MAY_READ_FILES = "policies.loading."
"""Modules of `policies` that may use the file system: they read the files of policies, and no policy imports them."""

CATCH_ALL_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"})
LONGEST = 500
"""Maximum lines of a file outside the tests."""


@dataclass(frozen=True)
class Import:
    """One imported module, and when: `is_early` means while the importing module itself is being imported."""

    importer: str
    imported: str
    line: int
    is_early: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def statements(parent: ast.AST, is_early: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Import statements, and whether they run at import: neither in a function nor under `if TYPE_CHECKING:`."""
    is_typing = isinstance(parent, ast.If) and ast.unparse(parent.test) == "TYPE_CHECKING"
    is_late = isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(parent, field, ()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node, is_early and not (is_late or (is_typing and field == "body"))
            elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from statements(node, is_early and not (is_late or (is_typing and field == "body")))


def imports_of(module: str) -> Iterator[Import]:
    """Every import statement of a module, also inside functions."""
    for node, is_early in statements(tree_of(SOURCES[module])):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute here"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in SOURCES else str(node.module) for name in inside]
        else:
            continue
        for name in dict.fromkeys(names):
            yield Import(module, name, node.lineno, is_early)


@cache
def imports() -> list[Import]:
    return [found for module in SOURCES for found in imports_of(module)]


def package_of(module: str) -> str:
    return module.partition(".")[0]


def is_allowed(found: Import) -> bool:
    here, there = package_of(found.importer), package_of(found.imported)
    return there not in PACKAGES or there == here or there in ALLOWED[here] or found.imported in ALLOWED[here]


def test_imports_between_packages_are_allowed() -> None:
    wrong = [str(found) for found in imports() if not is_allowed(found)]
    assert not wrong, "\n".join(wrong)
    packages = [*ALLOWED]
    for at, package in enumerate(packages):
        assert {package_of(allowed) for allowed in ALLOWED[package]} <= {*packages[:at]}, (
            "a cycle is possible"
        )


def test_nothing_is_raised_within_a_clause_for_groups() -> None:
    """Before CPython 3.11.4 an error raised within `except*` stays in a group, which no caller expects."""
    paths = {
        module: path for module, path in SOURCES.items() if "except*" in path.read_text(encoding="utf-8")
    }
    assert paths
    for module, path in paths.items():
        clauses = [
            handler for node in nodes_of(path) if isinstance(node, ast.TryStar) for handler in node.handlers
        ]
        assert not any(isinstance(one, ast.Raise) for clause in clauses for one in ast.walk(clause)), module


def test_search_for_imports_finds_known_ones() -> None:
    """Guards against a search that finds nothing."""
    found = {(package_of(f.importer), package_of(f.imported)) for f in imports()}
    assert {("balancer", "policies"), ("experiments", "policies"), ("experiments", "balancer")} <= found


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("policies.routing.router", "balancer.cluster.cluster"),
        ("balancer.cluster.cluster", "experiments.generator.generator"),
        ("balancer.cluster.cluster", "workers.service"),
        ("workers.app", "policies.facts"),
        ("experiments.generator.client", "balancer.upstream.http1.connection"),
        ("experiments.generator.generator", "workers.app"),
        ("experiments.generator.generator", "benchmarks.harness.closed_load"),
    ],
)
def test_forbidden_import_is_found(importer: str, imported: str) -> None:
    assert not is_allowed(Import(importer, imported, 1, is_early=True))


def test_modules_have_no_import_cycle() -> None:
    """Imports for annotations only, or inside a function, do not count: they cannot prevent a start."""
    graph: dict[str, set[str]] = {module: set() for module in SOURCES}
    for found in imports():
        is_package_of_importer = found.importer.startswith(f"{found.imported}.")
        if found.is_early and found.imported in SOURCES and not is_package_of_importer:
            graph[found.importer].add(found.imported)
    cycle = cycle_of(graph)
    assert not cycle, " -> ".join(cycle)


def folder_of(module: str) -> str:
    """Folder of a module below its package; a module at the root of the package counts as a folder of its
    own."""
    return ".".join(module.split(".")[:2])


def folders_of(package: str, imports: list[Import]) -> dict[str, set[str]]:
    """Folder -> folders of the same package that it imports, also for annotations only and inside
    functions."""
    graph: dict[str, set[str]] = {}
    for found in imports:
        here, there = folder_of(found.importer), folder_of(found.imported)
        if package_of(here) == package_of(there) == package and here != there:
            graph.setdefault(here, set()).add(there)
    return graph


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """Return a cycle of the graph, first node repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_have_no_import_cycle(package: str) -> None:
    cycle = cycle_of(folders_of(package, imports()))
    assert not cycle, " -> ".join(cycle)


def test_graph_of_folders_has_known_imports() -> None:
    graph = folders_of("balancer", imports())
    assert "balancer.upstream" in graph["balancer.exchange"]  # a folder imports a folder
    assert "balancer.log" in graph["balancer.__main__"]  # a root module imports a folder
    assert "balancer.build" in graph["balancer.__main__"]  # a root module imports a root module
    assert "balancer.routes" in graph["balancer.downstream"]  # for annotations alone


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("balancer.upstream.pool", "balancer.cluster.cluster"),
        ("balancer.config.loading", "balancer.process.server"),
        ("balancer.cluster.registry", "balancer.control.control_plane"),
    ],
)
def test_upward_import_of_a_folder_is_found(importer: str, imported: str) -> None:
    late = Import(importer, imported, 1, is_early=False)
    assert cycle_of(folders_of("balancer", [*imports(), late]))


CIRCLES = {
    "policies.endpoint latency_prior state": "a prior is that of a state, which has it",
    "balancer.config loading schema.rate_limits": "rate limits are checked with the whole configuration",
    "balancer.upstream.dial dial route_watch target": "a target has its watch, which dials it",
    "balancer.upstream connector pool pool_context": "a pool counts in what all pools share",
    "balancer.upstream.http1 pool preconnect": "a pool has its preconnect, which opens connections of it",
    "balancer.upstream.http2 connection stream": "a connection has its streams, which write to it",
    "balancer.upstream.library curl curl_transfer": "a client has its transfers, which end there",
    "balancer.exchange attempt_span routed_attempt": "an attempt has its span, which describes it",
    "balancer.exchange responder tunnel": "a responder has its pending upgrade, which goes back to it",
    "balancer.exchange attempt call_rules exchange_state": "an exchange has its attempt, which reports to it",
    "balancer.mirroring copy_attempt mirror": "a mirror has its copies, a copy its attempt",
    "balancer.downstream.http2 open_streams stream stream_transport": "a connection has streams, a stream its tunnel",
    "balancer.control.admin application connection exchange": "connections hand requests to the application",
    "experiments.simulator attempt worker worker_connections": "an attempt holds a connection to its worker",
    "experiments.simulator fleet oracles": "oracles see the whole fleet, which has them",
}
"""Folder and files that import each other in a circle, also for annotations only -> why."""


def circles_of(imports: list[Import]) -> set[frozenset[str]]:
    """Modules that import each other, also for annotations only and inside functions, by circle."""
    graph: dict[str, set[str]] = {module: set() for module in SOURCES}
    for found in imports:
        if found.imported in SOURCES and not found.importer.startswith(f"{found.imported}."):
            graph[found.importer].add(found.imported)
    reached = {module: everything_from(graph, module) for module in SOURCES}
    own = (
        frozenset(other for other in there if module in reached[other]) for module, there in reached.items()
    )
    return {circle for circle in own if circle}


def everything_from(graph: dict[str, set[str]], module: str) -> set[str]:
    """All modules that one imports, by way of others, too."""
    found: set[str] = set()
    waiting = [*graph[module]]
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += graph[here]
    return found


def test_circles_of_imports_are_the_listed_ones() -> None:
    listed = {frozenset(f"{folder}.{name}" for name in names) for folder, *names in map(str.split, CIRCLES)}
    assert circles_of(imports()) == listed
    assert all(len(circle) <= 3 for circle in listed)


def test_circle_of_annotations_is_found() -> None:
    late = Import("balancer.cluster.cluster", "balancer.exchange.exchange", 1, is_early=False)
    assert any(
        late.importer in circle and late.imported in circle for circle in circles_of([*imports(), late])
    )


def test_live_page_of_an_experiment_is_imported_on_demand() -> None:
    graph: dict[str, set[str]] = {module: set() for module in SOURCES}
    for found in imports():
        if found.is_early and found.imported in SOURCES:
            graph[found.importer].add(found.imported)
    for command in ("run", "live", "session"):
        reached = everything_from(graph, f"experiments.commands.{command}")
        assert "experiments.scenario.scenario" in reached
        assert [module for module in reached if module.startswith("experiments.live_page")] == []


def test_policies_import_only_the_standard_library_and_themselves() -> None:
    foreign = [
        str(found)
        for found in imports()
        if package_of(found.importer) == "policies"
        and package_of(found.imported) not in {*sys.stdlib_module_names, "policies"}
    ]
    assert not foreign, "\n".join(foreign)


def test_policies_import_no_io_and_no_concurrency() -> None:
    wrong = [
        str(found)
        for found in imports()
        if package_of(found.importer) == "policies" and package_of(found.imported) in FORBIDDEN_IN_POLICIES
        if not (found.importer.startswith(MAY_READ_FILES) and found.imported == "os")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_policy_imports_what_reads_files() -> None:
    importers = {f.importer for f in imports() if f.imported.startswith(MAY_READ_FILES)}
    may = ("policies.registry", "policies.loading", "policies.contract")
    assert all(name.startswith(may) for name in importers if package_of(name) == "policies")


def test_only_the_clock_of_policies_imports_time() -> None:
    importers = {
        f.importer for f in imports() if package_of(f.importer) == "policies" and f.imported == "time"
    }
    assert importers == {"policies.clock"}
    assert "class MonotonicClock" in SOURCES["policies.clock"].read_text(encoding="utf-8")


def test_policies_use_no_shared_randomness() -> None:
    """`from random import Random` names a type; everything else of that module is shared by the process."""
    for module, path in modules("policies").items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module == "random":
                assert [alias.name for alias in node.names] == ["Random"], f"{module}:{node.lineno}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random":
                assert node.attr == "Random", f"{module}:{node.lineno}: random.{node.attr}"


def test_no_module_has_a_catch_all_name() -> None:
    assert [module for module in SOURCES if module.rpartition(".")[2] in CATCH_ALL_NAMES] == []


def test_no_module_is_too_long() -> None:
    lengths = {module: path.read_text(encoding="utf-8").count("\n") for module, path in SOURCES.items()}
    assert {module: lines for module, lines in lengths.items() if lines > LONGEST} == {}
