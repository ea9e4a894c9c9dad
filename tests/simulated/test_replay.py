"""Records that every block replays: intervals over their parts, what is said of them, and how often they are wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import cli
from experiments.inference.run import simulate
from experiments.scenario.files import load_scenario
from experiments.stats.comparison import Values, compare_pairs
from experiments.stats.run_summary import parts_per_label, summarise_run
from tests.support.command_line import run_in_process

SCENARIO = """
name = "replay"
question = "Which?"
measure = "mean"
baseline = "POLICY"
home_region = "here"
timeout = 600.0
load = { mode = "open", arrivals = "replay", file = "log.jsonl", duration = 1000.0 }
inference = { prefill = 8000.0 }
regions = [{ name = "here", workers = 3, rtt = 0.001 }]
entries = [{ policy = "POLICY" }, { policy = "OTHER", label = "other" }]
"""


def replay(folder: Path, seed: int, count: int, policy: str, other: str) -> str:
    """A scenario with a log of `count` requests, some six per second, of unequal lengths; the first one failed."""
    rng = np.random.default_rng(seed)
    instants = 1e9 + np.cumsum(rng.exponential(1 / 6, count))
    lengths = np.clip(rng.lognormal(7.2, 1.2, count), 1, 20_000).astype(int)
    lines = [json.dumps({"timestamp": 1e9, "prompt": "x", "status": 503})]
    for at, tokens, output in zip(instants, lengths, rng.integers(5, 300, count), strict=True):
        usage = {"prompt_tokens": int(tokens), "completion_tokens": int(output)}
        lines.append(json.dumps({"timestamp": at, "prompt": rng.bytes(30).hex(), "usage": usage}))
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text("\n".join(lines))
    (folder / "replay.toml").write_text(SCENARIO.replace("POLICY", policy).replace("OTHER", other))
    return str(folder / "replay.toml")


def test_a_record_that_cannot_be_read_ends_the_command_before_anything_is_written(tmp_path: Path) -> None:
    """So that the corrected command may have the same --out."""
    file, out = replay(tmp_path, 1, 200, "round-robin", "dynamo"), tmp_path / "a"
    (tmp_path / "log.jsonl").write_text("1.0\nsoon\n")
    done = run_in_process(cli, "experiments", "run", file, "--simulated", "--out", str(out))
    assert (done.returncode, "line 2: 'soon'" in done.stderr, out.exists()) == (2, True, False)


@pytest.mark.usefixtures("unrendered")
def test_blocks_alike_are_no_evidence(tmp_path: Path) -> None:
    """Policies without chance: every block is the same, and the interval is that over parts of the record."""
    file, out, again = replay(tmp_path, 1, 200, "round-robin", "dynamo"), tmp_path / "a", tmp_path / "b"
    options = ("run", file, "--simulated", "--blocks")
    done = run_in_process(cli, "experiments", *options, "8", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "log.jsonl: 1 of its lines left" in done.stdout
    assert "Every block replays the same record" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert len({run["mean"] for run in summary["runs"] if run["label"] == "other"}) == 1
    first = summary["runs"][0]  # the record is shorter than the scenario's duration
    assert first["requests"] == 200
    assert first["offered_rate"] == pytest.approx(first["achieved_rate"], rel=0.02)
    (found,) = (one["interval"] for one in summary["comparisons"] if one["measure"] == "mean")
    assert found["high"] / found["low"] > 1.1
    means = {run["label"]: run["mean"] for run in summary["runs"]}
    assert found["ratio"] == pytest.approx(means["other"] / means["round-robin"])
    rows = [line for line in (out / "report.md").read_text().splitlines() if line.startswith("| other")]
    assert not any(line.count("[") == 7 for line in rows)  # tokens: a mean without an interval
    replay(tmp_path, 1, 200, "round-robin", "round-robin")
    alone = (*options, "2", "--policies", "other", "--out", str(again))
    done = run_in_process(cli, "experiments", *alone)
    assert "Every block replays the same record" in done.stdout
    low, high = re.findall(r"on average .*? \((\d+) ms to (\d+) ms\)", " ".join(done.stdout.split()))[0]
    assert int(high) > 1.1 * int(low)
    done = run_in_process(cli, "experiments", "compare", str(out), str(again), "--json", str(tmp_path / "c"))
    assert "Every run replays the same record" in done.stdout
    (found,) = (
        one for one in json.loads((tmp_path / "c").read_text())["entries"] if one["measure"] == "mean"
    )
    assert found["interval"]["high"] / found["interval"]["low"] > 1.1


@pytest.mark.second_tier
@pytest.mark.timeout(300)
def test_equal_policies_are_rarely_ranked(tmp_path: Path) -> None:
    """One policy with two seeds, on a hundred records: eight blocks alike would always rank them."""
    claims = {True: 0, False: 0}
    for seed in range(1, 101):
        scenario = load_scenario(
            replay(tmp_path / str(seed), seed, 300, "least-in-flight", "least-in-flight")
        )
        first, *_ = runs = [
            summarise_run(simulate(scenario, entry, 0, 0, seed), 1.0, is_replay=True)
            for entry in scenario.entries
        ]
        labels = [run.label for run in runs]
        values = {run.label: dict.fromkeys(range(8), run.mean) for run in runs}
        for has_parts in claims:
            parts: Values = parts_per_label(labels, runs, "mean") if has_parts else {}
            ((found,), _) = compare_pairs("mean", values, [("other", first.label)], parts=parts)
            claims[has_parts] += found.standing in ("ahead", "behind")
    assert claims[True] <= 8
    assert claims[False] >= 40  # the others are within 5 %
