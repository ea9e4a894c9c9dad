"""Hundreds of workers: more than one machine starts, and more than a figure can show one by one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.patches import Rectangle

from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.report import figures_time, figures_workers
from experiments.report.palette import MAX_DRAWN, competitors
from experiments.results.directory import load_results
from experiments.run_data import Kind
from experiments.scenario.files import load_scenario, packaged
from experiments.scenario.supported import MOST_PROCESSES, require_live

pytestmark = pytest.mark.second_tier

WORKERS = 100
SCENARIO = f"""
name = "hundreds"
question = "Does it fit?"
baseline = "round-robin"
home_region = "home"
timeout = 5.0
blocks = 2

[load]
mode = "open"
arrivals = "poisson"
rate = 4000.0
duration = 0.5

[[regions]]
name = "home"
workers = {WORKERS}
rtt = 0.001

[[regions]]
name = "far"
workers = {WORKERS}
rtt = 0.1

[[entries]]
label = "round-robin"
policy = {{ name = "round-robin" }}
"""


@pytest.fixture(scope="module")
def hundreds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated campaign of two hundred workers, with its report."""
    directory = tmp_path_factory.mktemp("hundreds")
    (directory / "hundreds.toml").write_text(SCENARIO)
    out = directory / "results"
    done = CliRunner().invoke(
        cli, ["run", "--simulated", str(directory / "hundreds.toml"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    return out


def test_tables_show_regions_and_the_range_within(hundreds: Path) -> None:
    """A column for each of two hundred cannot be read; files keep every worker."""
    page = (hundreds / "report.md").read_text()
    assert "| entry | home % | far % | least × | most × |" in page
    assert "home-0" not in page
    row = next(
        line for line in page[page.index("## Share per region") :].splitlines() if "round-robin" in line
    )
    home, far, least, most = (float(cell) for cell in row.split("|")[2:6])
    assert home + far == pytest.approx(100, abs=0.1)
    assert home == pytest.approx(50, abs=0.5)
    assert 0.5 < least <= 1 <= most < 1.5
    (entry,) = json.loads((hundreds / "summary.json").read_text())["entries"]
    assert len(entry["share_per_worker"]) == 2 * WORKERS


def test_figures_show_regions(hundreds: Path) -> None:
    """A segment and a band for each; two hundred lines would be megabytes and unreadable."""
    results = load_results(hundreds)
    field = competitors(results)
    (bars,) = figures_workers.worker_share(field).axes
    assert [bar.get_width() for bar in bars.patches if isinstance(bar, Rectangle)] == pytest.approx(
        [50, 50], abs=0.5
    )
    in_flight = figures_time.in_flight_per_worker(field, [])
    assert len(in_flight.axes[0].lines) == 2
    assert [text.get_text() for text in in_flight.legends[0].get_texts()] == [
        f"home, {WORKERS} workers",
        f"far, {WORKERS} workers",
    ]


def test_requests_in_flight_per_worker(hundreds: Path) -> None:
    """Compared with a plain count, for some of them. The first row has those without an answer."""
    samples = load_results(hundreds).runs[0].samples
    instants = np.linspace(0, 0.6, 7)
    counts = figures_time.in_flight(samples, 2 * WORKERS, instants)
    assert counts.shape == (2 * WORKERS + 1, 7)
    assert counts.any()
    for worker in (0, 57, WORKERS, 2 * WORKERS - 1):
        mine = samples.worker == worker
        for at, counted in zip(instants, counts[worker + 1], strict=True):
            assert counted == np.sum(mine & (samples.sent_at <= at) & ~(samples.ended_at <= at))


def test_dots_are_thinned(hundreds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly over the whole run; failures are kept where they are few; the caption says so."""
    field = competitors(load_results(hundreds))
    assert figures_workers.thinning(field) == ""
    samples = field[0].runs[0].samples
    samples.kind[[3, 77]] = Kind.RESET
    monkeypatch.setattr(figures_workers, "MOST_DOTS", 100)
    (panel,) = figures_workers.service_by_request(field).axes
    *successes, failures = (np.asarray(drawn.get_offsets()) for drawn in panel.collections)
    dots = np.concatenate(successes)
    assert 90 <= len(dots) <= 100
    assert np.ptp(dots[:, 0]) > 0.9 * len(samples)
    assert failures[:, 0].tolist() == [3, 77]
    assert f"one request in {math.ceil((len(samples) - 2) / 100)} is drawn" in figures_workers.thinning(field)


def test_measured_run_rejects_hundreds_of_workers(hundreds: Path) -> None:
    """In one line that names the key."""
    scenario = load_scenario(str(hundreds.parent / "hundreds.toml"))
    with pytest.raises(BadInputError, match=r"regions\.0\.workers = 100: more than 64"):
        require_live(scenario)
    near = scenario.regions[0].model_copy(update={"workers": MOST_PROCESSES})
    require_live(scenario.model_copy(update={"regions": (near,)}))


@pytest.mark.parametrize("name", sorted(packaged()))
def test_packaged_scenarios_have_few_enough_workers_for_figures(name: str) -> None:
    assert len(load_scenario(name).workers) <= MAX_DRAWN
