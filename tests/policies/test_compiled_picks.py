"""The compiled build of the default policy picks as the source does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import policies.steelyard.least_cost

HERE = Path(__file__).resolve().parent
OPTIONS = [
    *({}, {"choices": 2}, {"load": 0.0, "margin": 0.05}, {"explore": 0.05}, {"shed": False}),
    {"objective": {"deadline": 0.2}, "prices": {"near": 0.02, "far": -0.05}},
]
REQUESTS = 200_000
"""With each of the options: more than a million in all."""


def picks(options: dict[str, Any], **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-P", str(HERE / "picks.py"), str(REQUESTS), json.dumps(options)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.second_tier
@pytest.mark.timeout(180)
@pytest.mark.skipif(
    policies.steelyard.least_cost.__file__.endswith(".py"), reason="this build is not compiled"
)
@pytest.mark.parametrize("options", OPTIONS)
def test_compiled_build_picks_as_the_source_does(options: dict[str, Any]) -> None:
    """Both with the same seeds; PYTHONPATH has the source found before the installed build."""
    compiled = picks(options, PYTHONPATH="")
    assert picks(options, PYTHONPATH=str(HERE.parent.parent)) == compiled
    assert len(compiled["served"]) == 9
    assert bool(compiled["rejected"]) == options.get("shed", True)
