"""What test files share lies in tests/support or in a module without tests: none imports a test file or a conftest."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.root import ROOT


def imported_tests(source: str) -> Iterator[str]:
    """Names of test files and conftest files that a source imports, at any place."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{name}" for name in names)]
            for name in names:
                parts = name.split(".")
                if parts[0] == "tests" and parts[-1].startswith(("test_", "conftest")):
                    yield name


def test_no_test_file_is_imported() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for folder in ("tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := list(imported_tests(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from tests.policies.test_router import First",
        "from tests.policies import test_router",
        "import tests.workers.conftest",
        "def f():\n    from tests.test_project import PAGES",
    ],
)
def test_import_of_a_test_file_is_found(line: str) -> None:
    assert len(list(imported_tests(line))) == 1


def test_import_of_shared_code_is_allowed() -> None:
    assert list(imported_tests("from tests.support.wire import Wire\nimport tests.parts")) == []
