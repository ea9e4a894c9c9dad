"""Fixed or fresh seeds for a test run, and a directory of its own for admin sockets."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("fresh", derandomize=False, database=None, deadline=None, print_blob=True)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="draw examples and faults from this seed, not the fixed ones")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Pass `--seed` on to hypothesis, whose own hook reads its options after this one."""
    seed = config.getoption("--seed")
    if seed is not None:
        settings.load_profile("fresh")
        config.option.hypothesis_seed = str(seed)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze modules and tests, so that no collection of garbage looks at their millions of objects, nor while they are
    made. Afterwards it is collected less often.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000)
        gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--seed")
    return "seeds: fixed" if seed is None else f"seeds: --seed={seed} repeats them"


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of reports are made and not rendered, which takes most of the time of a report."""
    from experiments.report import canvas

    monkeypatch.setattr(canvas, "settle", lambda figure: figure)
    monkeypatch.setattr(canvas, "to_svg", lambda figure: b'<svg xmlns="http://www.w3.org/2000/svg"/>')
    monkeypatch.setattr(canvas, "to_png", lambda figure: b"")


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
