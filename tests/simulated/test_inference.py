"""Requests for inference in virtual time: instants by hand, routers and reports, refusals, what a report says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from balancer.config.schema.named_clusters import ClusterSettings
from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.inference.prompts import prompts_of, synthetic
from experiments.inference.refusals import RETRY_BUDGET
from experiments.inference.run import SimulatedRunner, simulate
from experiments.inference.simulation import InferenceSimulation
from experiments.recorded.inference_trace import Prompts
from experiments.results.directory import PlannedRun, load_results
from experiments.run_data import Kind, Run, load_run, save_run, write_run
from experiments.scenario.files import load_scenario, packaged
from experiments.scenario.inference import MIXES, PromptMix
from experiments.scenario.scenario import Scenario
from experiments.scenario.thresholds import parse_threshold
from experiments.simulator.clock import VirtualClock
from experiments.stats.measures import goodput, percentile, time_per_output_token, token_measures
from experiments.verdict.summary import judge
from policies.algorithms.round_robin import RoundRobin
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Endpoint, Outcome, OutcomeKind, ReportedLoad, RequestFacts
from policies.routing.router import Router
from tests.support.command_line import complaint, run_in_process
from workers.inference.engine import Engine, EngineModel

SMALL: dict[str, Any] = {
    "name": "small",
    "question": "Which?",
    "baseline": "round-robin",
    "home_region": "here",
    "measure": "mean",
    "timeout": 100.0,
    "load": {"mode": "open", "rate": 20.0, "duration": 10.0},
    "inference": {"prompts": "conversations"},
    "regions": [{"name": "here", "workers": 4, "rtt": 0.01}],
    "entries": [{"policy": "round-robin"}, {"policy": "pending-tokens"}],
}


def small(**changes: Any) -> Scenario:
    return Scenario.model_validate(SMALL | changes)


def run_of(scenario: Scenario, entry: int = 1, seed: int = 7) -> Run:
    return simulate(scenario, scenario.entries[entry], 0, 0, seed)


# --- instants


class Watching(RoundRobin):
    """Round-robin that notes the reports and first tokens that it gets."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.reported: list[tuple[float, ReportedLoad]] = []
        self.picked_at: list[float] = []

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        self.picked_at.append(now)
        return super().pick(facts, available, now)

    def observe_probe(self, state: EndpointState, load: ReportedLoad, latency: float, now: float) -> None:
        self.reported.append((now, load))


def simulated(
    due: Sequence[float],
    tokens: int = 500,
    output: int = 11,
    *,
    policy: Watching | None = None,
    rtt: float = 0.0,
    timeout: float = inf,
    refresh: float = inf,
    max_waiting: int | None = None,
    engines: int = 1,
    retries: int = 2,
) -> InferenceSimulation:
    """Requests alike at engines that take 10 ms for a step and 1 ms for a token of a prompt."""
    model = EngineModel(prefill=1000.0, base=0.01, per_sequence=0.0, max_batch=2, max_waiting=max_waiting)
    clock = VirtualClock()
    endpoints = [Endpoint(f"e{number}", f"http://e{number}", "here") for number in range(engines)]
    router = Router(endpoints, policy or Watching(), clock, Random(0), time_budget=inf)
    made = [Engine(model) for _ in endpoints]
    simulation = InferenceSimulation(
        clock, [router], made, [rtt] * engines, "here", retries=retries, timeout=timeout, refresh=refresh
    )
    count = len(due)
    prompts = Prompts([tokens] * count, [output] * count, [[]] * count, [""] * count, 16)
    simulation.run(np.array(due), [0] * count, prompts)
    return simulation


def test_a_request_to_an_idle_engine() -> None:
    """A step for the prompt, ten for the further tokens; the round trip is added to each instant."""
    found = simulated([1.0], rtt=0.2)
    assert found.first_at == [pytest.approx(1.0 + 0.2 + 0.51)]
    rows = found.columns
    assert rows.ended == [pytest.approx(1.0 + 0.2 + 0.51 + 0.1)]
    assert (*rows.workers, *rows.kinds, *rows.statuses, *rows.attempts) == (0, Kind.OK, 200, 1)
    assert found.generated == [11]


@pytest.mark.parametrize(("refresh", "expected"), [(0.0, [0.3, 1.2, 5.0]), (1.0, [0.0, 1.0, 5.0]), (inf, [])])
def test_reports_are_as_old_as_stated(refresh: float, expected: list[float]) -> None:
    """For 0 of the instant of the request; otherwise the last of every so many seconds; others are left out."""
    policy = Watching()
    simulated([0.3, 1.2, 5.0], policy=policy, refresh=refresh)
    assert [at for at, _ in policy.reported] == pytest.approx(expected)


class Probing(Watching):
    """Probes the second engine after each request."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[EndpointState] = []

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        self.states = list(states)

    def probes(self, now: float) -> list[EndpointState]:
        return self.states[1:]


def test_a_policy_that_probes_learns_what_its_probes_bring() -> None:
    """A round trip after each request, with that request: the second engine gets the first and the third."""
    policy = Probing()
    simulated([0.3, 0.35, 5.0], policy=policy, refresh=0.0, engines=2, rtt=0.02)
    assert [at for at, _ in policy.reported] == pytest.approx([0.32, 0.37, 5.02])
    assert [load.in_flight for _, load in policy.reported] == [1, 1, 1]


def test_a_report_has_queue_and_cache() -> None:
    policy = Watching()
    simulated([0.0, 0.1, 0.2, 0.3, 0.4], policy=policy, refresh=0.0)
    loads = [load for _, load in policy.reported]
    assert [load.in_flight for load in loads] == [0, 1, 2, 3, 4]
    assert [load.waiting for load in loads] == [0, 0, 1, 2, 3]
    usage = [load.kv_usage for load in loads]
    assert usage[0] == 0.0
    assert usage[1] == pytest.approx(32 * 16 / 512_000)


def test_a_refused_request_goes_to_another_engine() -> None:
    """Until each has refused it: then it fails with 503. None is asked twice."""
    found = simulated([0.0] * 8, max_waiting=1, engines=2)
    assert max(found.columns.attempts) == 2
    assert found.retried > 0
    answered = [status for status in found.columns.statuses if status == 200]
    refused = [number for number, status in enumerate(found.columns.statuses) if status == 503]
    assert len(answered) + len(refused) == 8
    assert all(found.columns.kinds[number] == Kind.ERROR_STATUS for number in refused)
    assert len(answered) == 4  # one computed and one waiting at each


@pytest.mark.parametrize(("retries", "most"), [(0, 1), (1, 5), (10, 5)])
def test_a_refused_request_is_sent_to_every_other_engine_or_to_none(retries: int, most: int) -> None:
    retry = ClusterSettings(kind="inference").retry
    assert (retry.share, retry.per_second) == RETRY_BUDGET
    found = simulated([0.0] * 13, max_waiting=1, engines=5, retries=retries)
    assert max(found.columns.attempts) == most
    assert found.columns.statuses.tolist().count(200) == 10


class First(Watching):
    """Picks the first engine that is offered, and notes outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[OutcomeKind] = []

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[0]

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        self.kinds.append(outcome.kind)


def test_an_engine_that_has_refused_rests() -> None:
    """For a second; meanwhile it is asked last, after another one that refuses, too. No refusal is a failure."""
    policy = First()
    found = simulated([0.0, 0.0, 0.0, 0.1, 0.2, 2.0], policy=policy, max_waiting=1, engines=2)
    assert list(found.columns.attempts) == [1, 1, 2, 1, 2, 1]
    assert list(found.columns.workers) == [0, 0, 1, 1, -1, 0]
    assert policy.kinds.count(OutcomeKind.BUSY) == 3
    assert {*policy.kinds} == {OutcomeKind.BUSY, OutcomeKind.OK}


def test_a_request_without_a_first_token_is_given_up() -> None:
    """Its client leaves, the engine drops it, and the next one is computed."""
    found = simulated([0.0, 0.1, 0.2], tokens=5000, output=200, timeout=8.0)
    assert found.columns.kinds.tolist() == [Kind.OK, Kind.TIMEOUT, Kind.TIMEOUT]
    assert found.columns.ended[1:] == pytest.approx([8.1, 8.2])
    assert found.columns.statuses.tolist() == [200, 0, 0]
    assert np.isnan(found.first_at[1])
    later = simulated([0.0, 0.1, 9.0], tokens=4000, timeout=6.0)
    assert later.columns.kinds.tolist() == [Kind.OK, Kind.TIMEOUT, Kind.OK]


# --- runs


def test_engines_far_away_are_known_to_be_far_away() -> None:
    """As balancers know it of handshakes: few prompts go to them while others are near."""
    near, far = ({"name": name, "workers": 2, "rtt": rtt} for name, rtt in (("here", 0.002), ("far", 0.3)))
    mix = {"input": 800, "output": 40, "sigma": 0.6}
    load = {"mode": "open", "rate": 8.0, "duration": 20.0}
    rows = run_of(small(regions=[near, far], inference={"prompts": mix}, load=load)).samples
    assert (rows.worker >= 2).sum() < 0.05 * len(rows)


def test_latency_of_a_run_is_the_time_to_the_first_token(tmp_path: Path) -> None:
    """The end is that of the last one; both are in the file of the run."""
    run = run_of(small())
    save_run(run, tmp_path / "run.npz")
    rows = load_run(tmp_path / "run.npz").samples
    assert rows.ok.all()
    assert np.array_equal(rows.latency, rows.first_byte_at - rows.scheduled_at)
    assert (rows.ended_at[rows.output_tokens > 1] > rows.first_byte_at[rows.output_tokens > 1]).all()
    assert (rows.cached_tokens <= rows.prompt_tokens).all()
    assert rows.cached_tokens.sum() > 0
    per_token = time_per_output_token(rows)
    assert np.nanmin(per_token) >= 0.01  # the base of a step


def test_the_same_seed_gives_the_same_bytes() -> None:
    scenario = small(balancers=3, staleness=0.5, entries=[{"policy": "llm-d"}, {"policy": "round-robin"}])
    planned = PlannedRun(block=0, order=0, label="llm-d", seed=5)
    files = [BytesIO(), BytesIO()]
    for file in files:
        write_run(SimulatedRunner().run(scenario, planned), file)
    assert files[0].getvalue() == files[1].getvalue()


def test_entries_of_a_block_meet_the_same_requests() -> None:
    one, other = run_of(small(), 0), run_of(small(), 1)
    for column in ("scheduled_at", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(one.samples, column), getattr(other.samples, column))
    assert not np.array_equal(one.samples.worker, other.samples.worker)


def test_balancers_know_less_alone_than_together() -> None:
    mix = {"prompts": "agents"}
    one = run_of(small(inference=mix))
    apart = run_of(small(inference=mix, balancers=4))
    shared = run_of(small(inference=mix, balancers=4, balancer={"shared": {"enabled": True}}))
    cached = [run.samples.cached_tokens.sum() for run in (one, apart, shared)]
    assert cached[1] < 0.9 * cached[0]
    assert cached[2] > 0.5 * (cached[0] + cached[1])


@pytest.mark.second_tier
@pytest.mark.parametrize("prompts", ["agents", "conversations"])
def test_two_balancers_that_share_are_nearly_as_good_as_one(prompts: str) -> None:
    """Mean time to the first token, with the defaults of `shared`; without, it is 1.2 times as long at least."""
    keys = {
        "inference": {"prompts": prompts},
        "load": {"mode": "open", "rate": 8.0, "duration": 120.0},
        "regions": [{"name": "here", "workers": 8, "rtt": 0.001}],
    }
    one, apart, shared = (
        np.mean([run_of(small(**keys, **more), seed=seed).samples.latency.mean() for seed in (1, 2)])
        for more in ({}, {"balancers": 2}, {"balancers": 2, "balancer": {"shared": {"enabled": True}}})
    )
    assert shared < 1.05 * one
    assert apart > 1.2 * one


def test_a_faster_engine_computes_more() -> None:
    scenario = small(
        inference={"prompts": "distinct", "prefill": 4000.0},
        regions=[{"name": "here", "workers": 2, "rtt": 0, "speed": [1.0, 4.0]}],
        load={"mode": "open", "rate": 2.0, "duration": 60.0},
    )
    rows = run_of(scenario).samples
    tokens = [rows.prompt_tokens[rows.worker == number].sum() for number in (0, 1)]
    assert tokens[1] > 2 * tokens[0]


def test_goodput_needs_both_limits() -> None:
    """Of first token and of further tokens, each of which some requests miss."""
    run = run_of(small(inference={"prompts": "mixed", "tpot_slo": 0.02}))
    rows = run.samples
    per_token = time_per_output_token(rows)
    slo = percentile(rows.latency, 80)
    in_time, fluent = rows.latency <= slo, ~(per_token > 0.02)
    assert 0 < in_time.sum() < len(rows)
    assert 0 < fluent.sum() < len(rows)
    assert goodput([run], slo) == pytest.approx(np.mean(in_time & fluent))
    assert token_measures(run, slo)["good_rate"] == pytest.approx(np.sum(in_time & fluent) / run.span)


# --- prompts


@pytest.mark.parametrize("name", [*MIXES])
def test_a_mix_has_its_lengths_and_its_seed(name: str) -> None:
    mix, found = MIXES[name], synthetic(MIXES[name], 4000, 3)
    assert np.mean(found.output) == pytest.approx(mix.output, rel=0.2)
    assert [len(blocks) for blocks in found.blocks] == [tokens // 128 for tokens in found.tokens]
    assert synthetic(MIXES[name], 4000, 4).blocks != found.blocks
    firsts = {blocks[0] for blocks in found.blocks if blocks}
    shares = {"system-prompt": 1, "mixed": 1, "conversations": 1, "agents": 12}
    assert len(firsts) == shares.get(name, len([1 for blocks in found.blocks if blocks]))


def test_a_conversation_repeats_what_was_said() -> None:
    """A prompt begins with the one before and its answer."""
    found = synthetic(PromptMix(turns=50, open=1, input=300, output=200), 40, 1)
    pairs = zip(range(40), range(1, 40), strict=False)
    turns = [(one, two) for one, two in pairs if found.sessions[one] == found.sessions[two]]
    assert len(turns) > 20
    for one, two in turns:
        assert found.blocks[two][: len(found.blocks[one])] == found.blocks[one]
        assert found.tokens[two] > found.tokens[one] + found.output[one]


def test_a_trace_is_simulated_from_its_file(tmp_path: Path) -> None:
    """The first `duration` seconds; a recording without prompts needs a mix."""
    file = tmp_path / "t.jsonl"
    line = '{"timestamp": %d, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}\n'
    file.write_text("".join(line % (1000 * second) for second in range(30)))
    load = {"mode": "open", "arrivals": "replay", "file": str(file), "duration": 20.0}
    rows = run_of(small(load=load, inference={})).samples
    assert len(rows) == 20
    assert rows.cached_tokens.tolist()[1:] == [512] * 19
    file.write_text("0.5\n1.5\n")
    with pytest.raises(BadInputError, match=r"load\.file: .* holds no prompts; state inference\.prompts"):
        prompts_of(small(load=load | {"duration": 10.0}, inference={}), 2, 1)


# --- scenarios


def test_a_request_that_no_cache_holds_is_refused_before_the_run() -> None:
    with pytest.raises(BadInputError, match=r"inference\.kv_tokens: must be at least \d+, which the longest"):
        run_of(small(inference={"prompts": "agents", "kv_tokens": 2048}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inference": {"prompts": "novels"}},
            "inference.prompts: must be a table, or one of conversations,",
        ),
        (
            {"inference": {"prompts": {"turns": 0}}},
            "inference.prompts.turns: Input should be greater than or",
        ),
        (
            {"inference": {"prompts": "mixed", "chunk": 16}},
            "inference: max_batch must be from 1 to chunk (16)",
        ),
        ({"inference": {"engines": 4}}, "inference.engines: Extra inputs are not permitted"),
        ({"inference": {}}, "inference.prompts: needed, unless load.file is a trace of inference"),
        ({"load": {"mode": "closed"}}, "load.mode: must be 'open' with [inference]"),
        ({"time_scale": 0.5}, "time_scale: must be 1 with [inference]"),
        ({"events": [{"at": 1, "kind": "slow", "value": 2}]}, "events: are not simulated with [inference]"),
        ({"balancer": {"hedging": {"enabled": True}}}, "balancer.hedging: is not simulated with [inference]"),
        (
            {"regions": [{"name": "here", "rtt": 0, "slots": 2}]},
            "regions.0.slots: is not read with [inference]; leave it out",
        ),
        (
            {"entries": [{"policy": "round-robin"}, {"policy": "oracle-least-work"}]},
            "entries.oracle-least-work.policy: oracles know no engines",
        ),
    ],
)
def test_a_bad_scenario_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in complaint(cli, "experiments", "run", written(tmp_path, **changes), "--simulated")


def written(tmp_path: Path, **changes: Any) -> str:
    """Path of the file of a scenario; inline tables look as in JSON, with `=`."""
    file = tmp_path / "small.toml"
    file.write_text("".join(f"{key} = {inline(value)}\n" for key, value in (SMALL | changes).items()))
    return str(file)


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def test_reports_of_any_age_are_simulated_only(tmp_path: Path) -> None:
    message = complaint(cli, "experiments", "run", written(tmp_path, staleness=0.5))
    assert "staleness = 0.5: only the simulator can do that" in message


@pytest.mark.second_tier
@pytest.mark.usefixtures("unrendered")
def test_a_measured_run_has_the_requests_and_columns_of_a_simulated_one(tmp_path: Path) -> None:
    """On processes; the report is about first tokens."""
    out = tmp_path / "results"
    changes: dict[str, Any] = {"load": {"mode": "open", "rate": 10.0, "duration": 2.0}, "warmup": 5}
    changes["regions"] = [{"name": "here", "workers": 2, "rtt": 0.01}]
    changes["inference"] = {"prompts": {"shared": 1024, "input": 200, "output": 10}, "prefill": 16000.0}
    file = written(tmp_path, **changes)
    options = ("--policies", "pending-tokens", "--blocks", "1", "--out", str(out))
    done = run_in_process(cli, "experiments", "run", file, *options)
    assert done.returncode == 0, done.stderr
    assert "to the first token" in (out / "report.md").read_text()
    results = load_results(out)
    measured = results.runs[0]
    simulated = run_of(results.scenario, 0, measured.facts.seed)
    rows = measured.samples
    assert rows.ok.all()
    for column in ("prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(rows, column), getattr(simulated.samples, column))
    assert rows.cached_tokens.sum() >= 10 * 1024  # both engines soon have the prefix
    assert (rows.first_byte_at[rows.output_tokens > 1] < rows.ended_at[rows.output_tokens > 1]).all()
    assert measured.facts.tpot_slo == simulated.facts.tpot_slo
    assert measured.facts.status["inference"]["prompts"] == len(rows)


@pytest.mark.usefixtures("unrendered")
def test_a_campaign_speaks_of_first_tokens(tmp_path: Path) -> None:
    """The verdict, the table of tokens with intervals, the method; `show` and `compare` read the same files."""
    out, load = tmp_path / "results", {"mode": "open", "rate": 30.0, "duration": 10.0}
    file = written(tmp_path, inference={"prompts": "agents"}, load=load)
    done = run_in_process(cli, "experiments", "run", file, "--simulated", "--blocks", "8", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Run pending-tokens: the average first token is" in done.stdout
    assert "mean time to first token" in done.stdout
    report = (out / "report.md").read_text()
    rows = [line for line in report.splitlines() if line.startswith("| pending-tokens")]
    assert 7 in [row.count("[") for row in rows]  # every value of the table has an interval
    assert "to the first token" in report
    assert "Set-up: 1 balancer; here 4 engines at 10 ms RTT. Each computes 8000 tokens" in report
    tokens = json.loads((out / "summary.json").read_text())["runs"][0]["tokens"]
    assert 0 < tokens["cached_share"] < 1
    assert tokens["end_to_end_mean"] > tokens["tpot_mean"] > 0.01
    assert load_results(out).runs[0].facts.tpot_slo == 0.1
    shown = run_in_process(cli, "experiments", "show", str(out))
    assert "the average first token is" in shown.stdout
    compared = run_in_process(cli, "experiments", "compare", str(out), str(out))
    assert "By mean time to first token, the second is" in compared.stdout


FAILING = {
    "inference-agents": ("round-robin", "least-in-flight"),
    "inference-balancers": ("pending-tokens",),
    "inference-idle-engines": ("ring-hash", "maglev"),
    "inference-in-step": ("llm-d",),
    "inference-mixed-lengths": ("least-in-flight",),
    "inference-new-sessions": ("prefix-chunks by rate",),
    "inference-one-of-eight": ("llm-d",),
    "inference-stale-reports": ("llm-d of any age",),
    "inference-system-prompt": ("prefix-chunks",),
}
"""Packaged scenario -> the entries that miss the thresholds that the last one meets."""


def test_every_packaged_failure_is_tried() -> None:
    assert set(FAILING) == {name for name in packaged() if name.startswith("inference-")}


@pytest.mark.parametrize("name", [*FAILING])
def test_the_bad_rule_fails_and_the_good_one_passes(name: str) -> None:
    scenario = load_scenario(name).quickened()
    good = scenario.entries[-1]
    texts = [text for text in good.thresholds if "errors" not in text]
    assert texts
    seed = 1
    for label in (good.label, *FAILING[name]):
        run = simulate(scenario, scenario.entry(label), 0, 0, seed)
        passed = [judge(parse_threshold(text), label, [run], scenario.slo, 1.0).passed for text in texts]
        assert passed == [label == good.label] * len(texts), label


@pytest.mark.parametrize("staleness", [5.0, 15.0, 30.0])
def test_old_reports_are_unknown_and_not_full(staleness: float) -> None:
    """As llm-d-router held requests for 11 to 13 s, issue 2514."""
    names = (f"{Path(__file__).with_name('stale_is_full.py')}:StaleIsFull", "llm-d", "pending-tokens")
    entries = [{"label": name.rpartition(":")[2], "policy": name} for name in names]
    raw = load_scenario("inference-stale-reports").model_dump(exclude={"entries"})
    scenario = Scenario.model_validate(
        {**raw, "baseline": "llm-d", "staleness": staleness, "entries": entries}
    ).quickened()
    lost = [1.0 - simulate(scenario, entry, 0, 0, 1).samples.ok.mean() for entry in scenario.entries]
    assert lost[0] > 0.5
    assert lost[1:] == [0.0, 0.0]
