"""The compiled build: mypyc accepts every module of it and loses no attribute.

The C compiler is not run: it takes minutes and finds nothing that mypyc has accepted.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.second_tier

ROOT = Path(__file__).resolve().parent.parent

LOST = "Unsupported default attribute value"
"""mypyc only warns, and the attribute is missing."""

PROGRAM = """
import sys
from mypyc.build import mypycify
mypycify(sys.argv[2:], opt_level="0", target_dir=sys.argv[1])
"""


def hot_modules() -> list[str]:
    """The modules that setup.py compiles, read without running it."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(name, "id", "") for name in node.targets] == ["HOT"]:
            found: list[str] = ast.literal_eval(node.value)
            return found
    raise LookupError("setup.py has no HOT")


@pytest.mark.second_tier
@pytest.mark.timeout(240)
def test_mypyc_compiles_every_hot_module(tmp_path: Path) -> None:
    hot = hot_modules()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *hot],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert LOST not in output
    assert any(tmp_path.rglob("*.c"))
