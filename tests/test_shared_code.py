"""What test files share lies in tests/support or in a module without tests: none imports a test file or a conftest."""

from __future__ import annotations

import re

import pytest

from tests.support.root import ROOT

IMPORT = re.compile(
    r"^\s*(?:from|import)\s+tests\.(?:\w+\.)*(?:test_\w+|conftest)\b"
    r"|^\s*from\s+tests[\w.]*\s+import\s+(?:\([^)]*|.*)\b(?:test_\w+|conftest)\b",
    re.MULTILINE,
)
"""A test file or a conftest file that is imported, or something that is called like one."""


def test_no_test_file_is_imported() -> None:
    paths = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    assert [path for path in paths if IMPORT.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "line",
    [
        "from tests.policies.test_router import First",
        "from tests.policies import test_router",
        "from tests.policies import (\n    picks,\n    test_router,\n)",
        "import tests.workers.conftest",
        "def f():\n    from tests.test_project import PAGES",
    ],
)
def test_import_of_a_test_file_is_found(line: str) -> None:
    assert IMPORT.search(line)


def test_import_of_shared_code_is_allowed() -> None:
    assert not IMPORT.search(
        "from tests.support.wire import Wire\nimport tests.parts\nfrom tests import parts\n"
    )
