"""Fixtures of the experiments' tests: results and runs made without a network."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from experiments.run_data import Run
from experiments.scenario.scenario import Scenario
from tests.support.result_sets import hand_made, write_results


@pytest.fixture(scope="session")
def make_results() -> Callable[..., Scenario]:
    """`make_results(directory, blocks=…, requests=…, failures=…, late=…, stop_after=…)` writes a campaign."""
    return write_results


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """`make_run(latency, kind=…, sent_late=…)` makes a run of hand-made columns, one worker, due 10 ms apart."""
    return hand_made
