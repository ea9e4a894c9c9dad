"""Admin sockets of the units under test go to a directory of the test run's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _runtime_directory() -> Iterator[None]:
    """Programs that tests start inherit it; its path is short, as a Unix socket's must be."""
    directory = tempfile.mkdtemp(prefix="steelyard-tests-")
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = directory
    yield
    if before is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = before
    shutil.rmtree(directory)
