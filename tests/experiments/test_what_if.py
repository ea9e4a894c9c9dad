"""`experiments what-if`: scenario from a recording, the answer, its error, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.commands.what_if import checked, chosen, write_instants
from experiments.errors import BadInputError
from experiments.generator.arrivals import first_instants
from experiments.recorded.instants import recorded as instants_in
from experiments.recorded.recording import read_recording
from experiments.run_data import Kind, Run
from experiments.scenario.scenario import Entry, Scenario
from experiments.simulator.run import Simulate, model_of, simulate
from experiments.what_if.answer import Question, WhatIfAnswer, answer, plain, region_in_words, scenario_of
from experiments.what_if.fit import fit, longest_span
from tests.experiments.tapes import Row, Tape, served, what_if
from tests.support.runs import facts_of, run_of, samples_of


def traffic(seed: int = 1, count: int = 4000) -> list[Row]:
    """EMEA 100 ms away, ASIA 300 ms; 15 ms of service as the workers report it; 50 requests a second."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        service, far = rng.uniform(0.012, 0.018), number % 4 == 0
        latency = service + (0.3 if far else 0.1)
        rows.append(Row(number / 50, 1 if far else 0, latency, service))
    return rows


@pytest.fixture
def taped(tmp_path: Path) -> Path:
    endpoints = [("emea-0", "EMEA", 0.1), ("asia-0", "ASIA", 0.3)]
    return Tape(traffic(), endpoints, about={"home_region": "EMEA"}).write(tmp_path / "unit.recording")


def question(*lost: str, **changes: Any) -> Question:
    policies = {"random": {"name": "random"}, "round-robin": {"name": "round-robin"}}
    return Question(**{"lost": lost, "policies": policies, "blocks": 8, **changes})


def made_up(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """Not a simulation: latencies by policy and number of regions, so that the text can be checked."""
    arrived = first_instants(scenario.load, seed, 1.0)
    rng = np.random.default_rng([seed, block])
    factor = {"random": 1.0, "round-robin": 0.8}[entry.policy.name] * (
        1.0 if len(scenario.regions) > 1 else 2.0
    )
    took = rng.choice([0.115, 0.315], size=len(arrived), p=[0.75, 0.25]) * factor
    return run_of(samples_of(arrived, took), **facts_of(scenario, entry, block, order, seed))


def lossy(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
    """The same, but under round-robin 1.9 % of the requests time out, and under random none."""
    run = made_up(scenario, entry, block, order, seed)
    is_lost = np.arange(len(run.samples)) % 53 == block
    kind = np.where(is_lost & (entry.policy.name == "round-robin"), Kind.TIMEOUT, Kind.OK).astype(np.int64)
    return Run(run.facts, replace(run.samples, kind=kind))


def answered(path: Path, tmp_path: Path, what: Question, simulate: Simulate = made_up) -> WhatIfAnswer:
    read = read_recording([path])
    write_instants(read, tmp_path / "instants.txt")
    return answer(read, tmp_path / "instants.txt", fit(read), what, simulate)


# --- a recording as a scenario


def test_a_recording_can_be_replayed(taped: Path) -> None:
    """By `arrivals = "replay"`, for the generator and the simulator."""
    assert instants_in(str(taped)).tolist() == read_recording([taped]).instants.tolist()
    assert len(instants_in(str(taped))) == 4000


def test_the_scenario_has_the_estimates(taped: Path, tmp_path: Path) -> None:
    read = read_recording([taped])
    write_instants(read, tmp_path / "instants.txt")
    scenario = scenario_of(
        read, tmp_path / "instants.txt", fit(read), {"random": {"name": "random"}}, question()
    )
    emea, asia = scenario.regions
    assert (emea.name, asia.name, scenario.home_region) == ("emea", "asia", "emea")
    assert [emea.rtt, asia.rtt] == pytest.approx([0.1, 0.3], abs=1e-4)
    assert emea.service.startswith("uniform:")
    assert scenario.load.planned == 4000
    assert first_instants(scenario.load, 1, 1.0) == pytest.approx(read.instants, abs=1e-8)


def test_the_nearest_region_replaces_a_lost_home(taped: Path, tmp_path: Path) -> None:
    read = read_recording([taped])
    write_instants(read, tmp_path / "instants.txt")
    left = [region for region in fit(read) if region.name == "ASIA"]
    scenario = scenario_of(read, tmp_path / "instants.txt", left, {"random": {"name": "random"}}, question())
    assert scenario.home_region == "asia"


def test_recorded_keys_are_replayed(tmp_path: Path) -> None:
    """By what-if, and by a scenario that replays the recording, if the policy saw them: a key goes to one worker."""
    rows = [
        replace(row, endpoint=number % 4, key=1 + number % 7)
        for number, row in enumerate(traffic(count=2000))
    ]
    endpoints = [(f"w{number}", "EMEA", 0.1) for number in range(4)]
    assert read_recording([Tape(rows, endpoints).write(tmp_path / "b.recording")]).keys == ()
    taped = Tape(rows, endpoints, about={"keyed": True}).write(tmp_path / "a.recording")
    read, instants = read_recording([taped]), tmp_path / "instants.txt"
    write_instants(read, instants)
    policies: dict[str, dict[str, Any]] = {"ring-hash": {"name": "ring-hash"}, "random": {"name": "random"}}
    by_text = scenario_of(read, instants, fit(read), policies, question())
    by_recording = scenario_of(read, taped, fit(read), policies, question())
    assert by_text.load.keys == by_recording.load.keys == read.keys
    assert read.keys[:8] == ("1", "2", "3", "4", "5", "6", "7", "1")
    for scenario in (by_text, by_recording):
        used = {}
        for entry in scenario.entries:
            worker = simulate(scenario, entry, 0, 0, 1).samples.worker
            used[entry.label] = [len({*worker[key::7].tolist()}) for key in range(7)]
        assert used == {"ring-hash": [1] * 7, "random": [4] * 7}


@pytest.mark.parametrize(
    ("name", "written"), [("EMEA", "emea"), ("eu_west.1", "eu-west-1"), ("1st", "r-1st")]
)
def test_region_names_are_converted(name: str, written: str) -> None:
    assert plain(name) == written


# --- the answer


def test_the_answer_begins_with_the_recorded_situation(taped: Path, tmp_path: Path) -> None:
    found = answered(taped, tmp_path, question("ASIA"))
    assert [(line.label, line.world, line.regions) for line in found.lines] == [
        ("random", "recorded", "EMEA ASIA"),
        ("random", "simulated", "EMEA ASIA"),
        ("random", "simulated", "EMEA"),
        ("round-robin", "simulated", "EMEA"),
    ]
    assert list(found.error) == pytest.approx([0, 0, 0], abs=0.03)
    first, second, beside, in_mean, trust = found.sentences
    assert first.startswith(
        "Without ASIA, under random, this traffic would see a p99 of 630 ms (×\u00a02.00 of what it is)"
    )
    assert "round-robin" in second
    assert beside.startswith("p99 of round-robin would be 0.80 [0.80–0.80] times that of random: ahead.")
    assert in_mean.startswith("mean of round-robin would be 0.80 [0.80–0.80] times that of random: ahead.")
    assert trust.endswith("close.")
    assert json.loads(json.dumps(found.as_dict()))["without"] == ["ASIA"]


def test_a_policy_that_fails_more_requests_is_not_ahead(taped: Path, tmp_path: Path) -> None:
    """A fifth faster, but its p99 is the deadline: failures count, and goodput stands beside them."""
    found = answered(taped, tmp_path, question(), lossy)
    standings = {one.measure: one.standing for one in found.comparisons}
    assert standings == {"p99": "behind", "mean": "behind"}
    failing = found.lines[-1]
    assert (failing.label, failing.p99) == ("round-robin", 30.0)
    assert failing.goodput == pytest.approx(1 - failing.failed) == pytest.approx(1 - 1 / 53, abs=1e-3)
    assert "1.9% failures, and 98.1% answered within 1 s." in found.sentences[1]


@pytest.mark.parametrize("failing", ["round-robin", "random"])
def test_a_policy_that_was_stood_in_for_has_no_result(taped: Path, tmp_path: Path, failing: str) -> None:
    """Not even in a single block; under an invalid baseline nothing is compared."""

    def stood_in(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
        run = made_up(scenario, entry, block, order, seed)
        reasons = ("the policy failed",) if block == 3 and entry.policy.name == failing else ()
        return Run(run.facts.model_copy(update={"invalid_reasons": reasons}), run.samples)

    found = answered(taped, tmp_path, question("ASIA"), stood_in)
    is_recorded = failing == "random"
    assert [bool(line.invalid) for line in found.lines] == [False, is_recorded, is_recorded, not is_recorded]
    assert f"INVALID: {failing} with EMEA: the policy failed." in found.sentences
    assert not found.comparisons
    assert not any(f"under {failing}" in sentence for sentence in found.sentences)
    assert found.sentences[-1].endswith("close.") is not is_recorded


def test_region_with_too_few_answers_is_said_to_be_left_out(tmp_path: Path) -> None:
    """Nothing is said of all regions, and policies that would use it are not compared, unless it is lost."""
    rows = [replace(row, endpoint=2) if n % 200 == 0 else row for n, row in enumerate(traffic())]
    endpoints = [("emea-0", "EMEA", 0.1), ("asia-0", "ASIA", 0.3), ("us-0", "US", 0.2)]
    path = Tape(rows, endpoints).write(tmp_path / "r")
    found = answered(path, tmp_path, question())
    assert (found.comparisons, found.as_dict()["left_out"]) == ((), ["US"])
    assert found.sentences[0].startswith(
        "Too few answers of US are recorded to simulate it, so policies are not"
    )
    assert found.sentences[1].startswith("Without US, under random, this")
    output, lost = what_if(path, "--without-region", "us", "--policy", "random", "--policy", "round-robin")
    assert (lost["without"], lost["left_out"], len(lost["comparisons"])) == (["US"], [], 2)
    assert "Too few answers" not in output


def test_what_only_a_part_of_the_recording_shows_is_not_claimed(taped: Path, tmp_path: Path) -> None:
    """Every block agrees, but round-robin is slower in the last quarter alone."""

    def uneven(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
        run = made_up(scenario, entry, block, order, seed)
        rows, is_last = run.samples, np.arange(4000) >= 3000
        more = np.where(is_last & (entry.policy.name == "round-robin"), 3.0, 1.0)
        return Run(run.facts, replace(rows, ended_at=rows.scheduled_at + more * rows.latency))

    (found,) = (
        one for one in answered(taped, tmp_path, question(), uneven).comparisons if one.measure == "mean"
    )
    assert found.interval.ratio == pytest.approx(1.2, rel=0.02)
    assert found.standing == "undecided"


def test_recorded_failures_count_as_the_deadline(tmp_path: Path) -> None:
    """One request in forty failed: the recorded p99 is the scenario's deadline, and the simulation is not close."""
    rows = [replace(row, end=1, status=503) if n % 40 == 0 else row for n, row in enumerate(traffic())]
    path = Tape(rows, [("emea-0", "EMEA", 0.1), ("asia-0", "ASIA", 0.3)]).write(tmp_path / "r")
    found = answered(path, tmp_path, question())
    recorded = found.lines[0]
    assert (recorded.p99, recorded.failed, recorded.goodput) == pytest.approx((30.0, 0.025, 0.975))
    assert found.goodput_error == pytest.approx(0.025)
    assert "a goodput +2.5 points off: smaller differences mean nothing." in found.sentences[-1]


def test_a_large_error_of_the_simulation_is_reported(tmp_path: Path) -> None:
    rows = [Row(row.at, row.endpoint, row.service * 2, row.reported) for row in traffic()]
    path = Tape(rows, [("a", "emea", 0.0), ("b", "asia", 0.0)]).write(tmp_path / "r")
    found = answered(path, tmp_path, question())
    assert found.error == pytest.approx((-0.5, -0.5, -0.5), abs=0.05)
    assert "close" not in found.sentences[-1]


def test_overload_of_the_remaining_workers_is_reported(tmp_path: Path) -> None:
    """100 requests a second, 20 ms each, one slot: two workers' work."""
    rows = [Row(n / 100, n % 4, 0.12, 0.02) for n in range(2000)]
    ends = [("a", "emea", 0.1), ("b", "asia", 0.1), ("c", "asia", 0.1), ("d", "asia", 0.1)]
    path = Tape(rows, ends).write(tmp_path / "r")
    found = answered(path, tmp_path, question("asia"))
    assert found.utilisation == pytest.approx(2.0, rel=0.01)
    assert found.sentences[0].startswith("Without asia this traffic needs 200% of what the workers can serve")


def test_backups_and_limits_of_endpoints_are_simulated(tmp_path: Path) -> None:
    """Backups serve nothing while all others work, and are no part of what these can serve."""
    rows = [Row(n / 100, n % 4, 0.12, 0.02) for n in range(2000)]
    ends = [("a", "emea", 0.1), ("b", "emea", 0.1), ("c", "emea", 0.1), ("d", "asia", 0.1)]
    more = [{"priority": 0, "max_in_flight": 8}, {"priority": 0}, {"priority": 1}, {"priority": 2}]
    path = Tape(rows, ends, more=more).write(tmp_path / "r")
    found = answered(path, tmp_path, question())
    assert found.utilisation == pytest.approx(1.0, rel=0.01)
    read = read_recording([path])
    scenario = scenario_of(read, tmp_path / "instants.txt", fit(read), found.question.policies, question())
    run = simulate(scenario, scenario.entries[0], 0, 0, 1)
    assert {*run.samples.worker.tolist()} == {0, 1}
    limits = [worker.max_in_flight for worker in model_of(scenario, scenario.entries[0], 1).workers]
    assert limits == [8, None, None, None]


def test_description_of_the_estimates(taped: Path) -> None:
    emea, _ = fit(read_recording([taped]))
    text = region_in_words(emea, 37.5)
    assert text.startswith("EMEA: 1 worker, uniform:")
    assert "as workers report" in text
    assert text.endswith("1 slot, round trip 100 ms, 56% of its capacity in use")
    assert replace(emea, slots=4).capacity == pytest.approx(4 * emea.capacity)


# --- options


def test_region_names_are_case_insensitive(taped: Path) -> None:
    regions = list(fit(read_recording([taped])))
    assert checked(("asia", "ASIA"), regions) == ("ASIA",)
    with pytest.raises(BadInputError, match="unknown 'us'; known: EMEA, ASIA"):
        checked(("us",), regions)
    with pytest.raises(BadInputError, match="leaves no endpoint"):
        checked(("asia", "emea"), regions)
    with pytest.raises(BadInputError, match="too few requests"):
        checked((), [])


def test_policies_are_checked_before_the_simulation(taped: Path) -> None:
    read = read_recording([taped])
    assert chosen((), read) == {"random": {"name": "random"}}
    assert chosen(('{"name": "region-aware", "margin": 0.5}',), read) == {
        "region-aware (margin=0.5)": {"name": "region-aware", "margin": 0.5}
    }
    with pytest.raises(BadInputError, match="--policy: unknown policy 'p2x'"):
        chosen(("p2x",), read)


def test_a_simulated_recording_gives_the_simulated_results(tmp_path: Path) -> None:
    """One slot, half of it used, computed by hand; the simulator agrees."""
    rows = served(50, 1, 0.1, [0.02, 0.02], reports=True)[:3000]
    tape = Tape(rows, [("a", "us", 0.0), ("b", "us", 0.0)], about={"policy": {"name": "round-robin"}})
    path = tape.write(tmp_path / "r")
    output, found = what_if(path, "--policy", "random", "--blocks", "2")
    assert (found["regions"][0]["slots"], found["without"]) == (1, [])
    assert abs(found["error"]["p50"]) < 0.02
    assert abs(found["error"]["p99"]) < 0.05
    _, simulated_, without = found["lines"]
    assert [line["label"] for line in found["lines"]] == ["round-robin", "round-robin", "random"]
    assert without["p99"] > simulated_["p99"]
    assert "close." in output


def test_only_the_longest_span_under_one_policy_is_used(tmp_path: Path) -> None:
    """Of 80 s: 20 s under random, 45 s under c3 although it is set again, and 15 s under random."""
    c3, other = {"name": "c3"}, {"name": "random"}
    changes = [(20.0, c3), (30.0, c3), (65.0, other)]
    endpoints = [("emea-0", "EMEA", 0.1), ("asia-0", "ASIA", 0.3)]
    path = Tape(traffic(), endpoints, changes=changes).write(tmp_path / "changed.recording")
    read, words = longest_span(read_recording([path]))
    assert read.policy == c3
    assert len(read) == 45 * 50
    assert (read.instants[0], read.changes) == (0.0, ())
    assert words == (
        "The policy changed 2 times during the recording: only the requests from 20 s to 65 s are used, all under c3."
    )
    output, found = what_if(path, "--blocks", "1")
    assert [line["world"] for line in found["lines"]] == ["recorded", "simulated"]
    assert "this traffic would see" not in output  # nothing was changed
    assert "2250 requests in 45 s, as c3 placed them" in output
    assert words in output
    assert "a mean" in output


def test_recording_under_one_policy_is_used_as_a_whole(taped: Path) -> None:
    whole = read_recording([taped])
    assert longest_span(whole) == (whole, "")
