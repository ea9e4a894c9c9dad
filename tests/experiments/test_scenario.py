"""Scenarios: packaged ones, validation, presets, overrides, plan, and the balancer's configuration."""

from __future__ import annotations

import json
import tomllib
from math import inf
from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.measured.process_config import balancer_config, endpoint_of, toml, toml_document, worker_argv
from experiments.report.drawings import drawn_field, paired_drawing
from experiments.results.directory import CAMPAIGN_FILE, load_results, plan
from experiments.scenario.files import GROUPS, grouped, load_scenario, packaged, unread_keys
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Region, Scenario
from experiments.verdict.summary import summarise
from tests.support.command_line import run_in_process
from tests.support.result_sets import write_results

MINIMAL = """
name = "tiny"
question = "Does it run?"
baseline = "random"
home_region = "here"
[[regions]]
name = "here"
rtt = 0.01
[[entries]]
label = "random"
policy = "random"
"""


def endpoints_of(scenario: Scenario) -> list[dict[str, Any]]:
    """Every worker, on ports from 9000 on."""
    pairs = zip(places_of(scenario), scenario.numbered_workers, strict=True)
    return [
        endpoint_of(scenario, place, region, number, ("127.0.0.1", 9000 + index))
        for index, (place, (region, number)) in enumerate(pairs)
    ]


@pytest.mark.parametrize("name", sorted(packaged()))
def test_every_packaged_scenario_is_valid(name: str) -> None:
    """It loads, every policy can be made, and it has a question and an A/A control."""
    scenario = overridden(load_scenario(name), Overrides())
    assert scenario.name == name
    assert scenario.question.endswith("?")
    assert scenario.control_pair is not None
    assert overridden(scenario, Overrides(quick=True)).control_pair is None


def test_the_default_scenario() -> None:
    """Three regions of two workers at 350, 450 and 580 ms, the source's five policies, and ours."""
    scenario = load_scenario("regions")
    assert [(region.name, region.workers, region.rtt) for region in scenario.regions] == [
        ("emea", 2, 0.35),
        ("us", 2, 0.45),
        ("asia", 2, 0.58),
    ]
    assert {entry.label: scenario.load_of(entry).batch for entry in scenario.entries} == {
        "random": 100,
        "random (batch 10)": 10,
        "single-region": 100,
        "round-robin": 100,
        "region-round-robin": 100,
        "region-aware": 100,
        "latency-weighted": 100,
        "least-in-flight": 100,
        "steelyard": 100,
        "round-robin again": 100,
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rtt = 0.01", "rtt = -1", r"regions\.0\.rtt: .*greater than or equal to 0"),
        ("rtt = 0.01", "rrt = 0.01", r"regions\.0\.(rtt|rrt): "),
        ('baseline = "random"', 'baseline = "rnd"', "baseline: unknown 'rnd'; known: random"),
        ('home_region = "here"', 'home_region = "mars"', "home_region: unknown 'mars'; known: here"),
        ('question = "Does it run?"', "colour = 1", "(question|colour): "),
        ('name = "tiny"', 'name = "tiny"\nthresholds = ["p99 < fast"]', r"thresholds\.0: .*'p99 < 800 ms'"),
        ('name = "tiny"', "name =", "not TOML"),
    ],
)
def test_an_invalid_scenario_is_reported_by_field_in_one_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(MINIMAL.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInputError, match=message) as caught:
        load_scenario(str(path))
    assert "\n" not in str(caught.value)


def test_the_scenario_in_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    path = tmp_path / "two-regions.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    assert overridden(load_scenario(str(path)), Overrides()).control_pair == (
        "round-robin",
        "round-robin again",
    )


def test_a_preset_expands_to_its_entries(tmp_path: Path) -> None:
    """The A/A control of the baseline is the last; the file's own entries precede it."""
    path = tmp_path / "tiny.toml"
    text = MINIMAL.replace('name = "tiny"', 'name = "tiny"\npreset = "standard"').replace(
        "random", "round-robin"
    )
    path.write_text(text.replace('label = "round-robin"', 'label = "mine"'), encoding="utf-8")
    labels = [entry.label for entry in load_scenario(str(path)).entries]
    assert labels[:2] == ["random", "round-robin"]
    assert labels[-2:] == ["mine", "round-robin again"]
    path.write_text(text.replace("standard", "best"), encoding="utf-8")
    with pytest.raises(BadInputError, match="preset: unknown"):
        load_scenario(str(path))


def test_an_a_a_control_of_the_file_replaces_that_of_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    text = MINIMAL.replace('name = "tiny"', 'name = "tiny"\npreset = "regions"')
    path.write_text(text.replace('label = "random"', 'label = "again"\nrepeat_of = "random"'))
    scenario = load_scenario(str(path))
    assert scenario.control_pair == ("random", "again")
    assert [entry.label for entry in scenario.entries if entry.repeat_of] == ["again"]


def repeated(label: str, policy: Any = "random", **keys: Any) -> dict[str, Any]:
    return {"label": label, "policy": policy, "repeat_of": "random", **keys}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([repeated("again"), repeated("again 2")], "'again 2' is one too many"),
        ([repeated("again"), repeated("third", repeat_of="again")], "'third' is one too many"),
        ([repeated("again", "steelyard")], "'again' must be 'random' under another label"),
        ([repeated("again", balancer={"retries": 0})], "'again' must be 'random' under another label"),
        ([repeated("again", batch=3)], "'again' must be 'random' under another label"),
        ([repeated("again", repeat_of="again")], "'again' must be 'again' under another label"),
        ([repeated("again", repeat_of="")], "'again' must be '' under another label"),
        (
            [repeated("again", policy={"name": "random", "x": 1}, batch=3)],
            "another label; not the same: policy, batch",
        ),
    ],
)
def test_an_a_a_control_is_one_entry_run_twice(
    tmp_path: Path, entries: list[dict[str, Any]], message: str
) -> None:
    """Another policy as the repetition would count as noise, and a second pair would have no comparison."""
    document, file = tomllib.loads(MINIMAL), tmp_path / "tiny.toml"
    document["entries"] += [
        {key: value for key, value in entry.items() if value is not None} for entry in entries
    ]
    file.write_text(toml_document(document), encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        load_scenario(str(file))


def test_a_burst_after_the_load_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    load = '[load]\nmode = "open"\narrivals = "burst"\nrate = 4\npeak = 5\nlasts = 1\nduration = 10\nstart = '
    file.write_text(f"{MINIMAL}{load}10\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"tiny\.toml: load\.start: the load ends at 10 s"):
        load_scenario(str(file))
    file.write_text(f"{MINIMAL}{load}9\n", encoding="utf-8")
    assert load_scenario(str(file)).load.bursts == ((9.0, 10.0),)


BURST = {"mode": "open", "arrivals": "burst", "rate": 40, "peak": 60, "lasts": 2, "start": 20, "duration": 4}
STAGGERED = {"at": 1.0, "kind": "drain", "target": "all", "stagger": 100.0}


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    "old",
    [
        {"load": BURST},
        {"events": [STAGGERED]},
        {"quick": {"duration": 5.0}},
        {"load": {"mode": "closed", "rate": 50.0}},
        {"pairs": {0: "random (batch 10)"}},
        {"pairs": {-1: "random"}},
        {"pairs": {-1: ""}},
    ],
)
def test_results_of_what_is_now_refused_are_read(tmp_path: Path, old: dict[str, Any]) -> None:
    """What an earlier version accepted and measured stays readable, with the report that it has."""
    write_results(tmp_path, blocks=2, requests=20)
    file = tmp_path / CAMPAIGN_FILE
    campaign = json.loads(file.read_text(encoding="utf-8"))
    scenario = campaign["scenario"] | {key: value for key, value in old.items() if key != "pairs"}
    for number, first in old.get("pairs", {}).items():
        scenario["entries"][number]["repeat_of"] = first
    file.write_text(json.dumps(campaign | {"scenario": scenario}), encoding="utf-8")
    results = load_results(tmp_path)
    assert [*unread_keys(results.scenario)]
    summary = summarise(results)
    for drawing in paired_drawing(drawn_field(results, summary), summary):
        drawing.draw()
    for command in ("show", "report"):
        done = run_in_process(cli, "experiments", command, str(tmp_path))
        assert done.returncode == 0, done.stderr


def test_every_scenario_has_a_heading() -> None:
    shelves = grouped()
    assert sum(len(scenarios) for scenarios in shelves.values()) == len(packaged())
    assert list(shelves) == list(GROUPS)


@pytest.mark.parametrize("name", sorted(packaged()))
def test_a_packaged_scenario_can_be_measured_here(name: str) -> None:
    """Not more requests per second than two cores can send and serve, in a run of at most a minute or so, even if all
    of its events are played; events end early enough to see what comes after them."""
    scenario = load_scenario(name)
    if scenario.inference is not None:  # some are simulated only, and an engine's answers take a while
        return
    for entry in scenario.entries:
        load = scenario.load_of(entry)
        if load.mode == "open":
            assert max(load.mean_rate, load.peak or 0) <= 1500
            assert 20 <= load.duration <= 60
    for event in scenario.events:
        assert event.lasts is None or event.at + event.lasts < scenario.load.duration
    assert scenario.quickened().load.duration <= 20


SHORT = {"blocks": 1, "warmup": 3, "load": {"mode": "open", "rate": 40, "duration": 2}}
EVENT = {"at": 1, "lasts": 0.5, "kind": "slow", "value": 20, "target": "here"}


@pytest.mark.parametrize("load", [SHORT["load"], {"mode": "closed", "requests": 100}])
def test_a_quick_run_is_never_longer(load: dict[str, Any]) -> None:
    """Also than one that is shorter than what `quick` says by default."""
    document = {**tomllib.loads(MINIMAL), **SHORT, "events": [EVENT], "load": load}
    scenario = Scenario.model_validate(document)
    quick = overridden(scenario, Overrides(quick=True))
    assert (quick.load.planned, quick.warmup, quick.events) == (scenario.load.planned, 3, scenario.events)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("stagger = 100", r"events\.0\.stagger: no second worker has its turn before the load ends"),
        ('stagger = 0.5\ntarget = "here-0"', r"events\.0\.stagger: no second worker has its turn"),
    ],
)
def test_a_stagger_without_a_second_turn_is_refused(tmp_path: Path, keys: str, message: str) -> None:
    path = tmp_path / "tiny.toml"
    load = '[load]\nmode = "open"\nrate = 40\nduration = 4\n[[events]]\nat = 1\nkind = "drain"\n'
    path.write_text(f"{MINIMAL}{load}stagger = 0.5\n", encoding="utf-8")
    assert load_scenario(str(path)).events[0].stagger
    path.write_text(f"{MINIMAL}{load}{keys}\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        load_scenario(str(path))


@pytest.mark.parametrize(("key", "mode"), [("requests", "open"), ("duration", "closed")])
def test_a_key_of_quick_that_the_mode_does_not_read_is_refused(tmp_path: Path, key: str, mode: str) -> None:
    path = tmp_path / "tiny.toml"
    rate = "rate = 40" if mode == "open" else ""
    path.write_text(f'{MINIMAL}[load]\nmode = "{mode}"\n{rate}\n[quick]\n{key} = 5', encoding="utf-8")
    with pytest.raises(BadInputError, match=rf"quick\.{key}: is not read with mode = '{mode}'; leave it out"):
        load_scenario(str(path))


def test_an_unknown_scenario_lists_the_known_ones() -> None:
    with pytest.raises(
        BadInputError, match=r"known: bursts, cold-start, .* unequal-speeds, random-SEED, or a path"
    ):
        load_scenario("region")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 5, "rate": 2.0}, "--batch and --rate: choose"),
        ({"policies": ("rondom",)}, "--policies: unknown 'rondom'; known: random"),
        ({"policies": ("random", "random")}, "--policies: an entry is named twice"),
        (
            {"policies": ("round-robin again",)},
            "^--policies: 'round-robin again' is the A/A control of 'round-robin'",
        ),
        ({"policies": ("round-robin again", "c3")}, "^--policies: 'round-robin again' is the A/A control"),
        ({"policies": ("x.py:",)}, "^--policies: 'x.py:' must be FILE.py:CLASS"),
        ({"policies": (":",)}, "^--policies: ':' must be FILE.py:CLASS"),
        ({"time_scale": 50.0}, "--time-scale: "),
        ({"batch": 10**6}, "--batch: "),
        *(
            ({name: value}, f"^--{name.replace('_', '-')}")
            for name, value in (
                *(("rate", inf), ("rate", 1e300), ("duration", inf), ("duration", 1e300)),
                *(("requests", 10**15), ("blocks", 10**9), ("seed", 10**100), ("time_scale", inf)),
            )
        ),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    """Contradictions, unknown names and numbers out of range."""
    with pytest.raises(BadInputError, match=message):
        overridden(load_scenario("steady" if "duration" in options else "regions"), Overrides(**options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("region-surge", {"duration": 3.0}, "--duration: load.start: the load ends at 3 s"),
        ("rolling-restart", {"duration": 3.0}, "--duration: events.0.at: the load ends at 3 s"),
        ("rolling-restart", {"duration": 3.0, "rate": 9.0}, "--rate, --duration: events.0.at: the load ends"),
        (
            "rolling-restart",
            {"duration": 11.0},
            "--duration: events.0.stagger: no second worker has its turn",
        ),
        ("steady", {"rate": 1e7, "duration": 1e5}, "--rate: 1,000,000,000,000 requests; a run has at most"),
        ("region-surge", {"time_scale": 1e9}, "--time-scale: Input should be"),
    ],
)
def test_a_complaint_names_options_that_were_given(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=f"^{message}"):
        overridden(load_scenario(name), Overrides(**options))


def test_an_event_after_a_record_is_no_option(tmp_path: Path) -> None:
    (tmp_path / "at.txt").write_text("0\n1\n2\n", encoding="utf-8")
    path = tmp_path / "tiny.toml"
    load = '[load]\nmode = "open"\narrivals = "replay"\nfile = "at.txt"\n[[events]]\nat = 9\nkind = "drain"\n'
    path.write_text(f"{MINIMAL}{load}", encoding="utf-8")
    for given in (Overrides(), Overrides(blocks=3)):
        with pytest.raises(BadInputError, match=r"^events\.0\.at: the load ends at 3 s"):
            overridden(load_scenario(str(path)), given)


def test_a_short_quick_run_has_its_bursts() -> None:
    scenario = load_scenario("region-surge")
    load = overridden(scenario, Overrides(quick=True, duration=3.0)).load
    assert load.bursts
    assert load.duration == 3


def test_policies_select_by_label_by_policy_and_from_the_registry() -> None:
    """`random` is its entry, and the baseline changes if it was left out."""
    scenario = overridden(
        load_scenario("steady"), Overrides(policies=("least-in-flight", "region-round-robin"))
    )
    assert [entry.label for entry in scenario.entries] == ["least-in-flight", "region-round-robin"]
    assert scenario.baseline == "least-in-flight"


def test_policies_select_a_label_that_looks_like_a_reference() -> None:
    scenario = load_scenario("steady")
    labels = ("far: 1", "mine.py:First")
    entries = tuple(scenario.entries[0].model_copy(update={"label": label}) for label in labels)
    chosen = overridden(
        scenario.model_copy(update={"entries": entries, "baseline": "far: 1"}), Overrides(policies=labels)
    )
    assert [entry.label for entry in chosen.entries] == [*labels]


def test_a_rate_opens_the_loop_and_drops_entries_of_other_batches() -> None:
    """`random (batch 10)` would be `random` a second time."""
    scenario = overridden(load_scenario("regions"), Overrides(rate=50.0, duration=2.0))
    assert scenario.load.mode == "open"
    assert scenario.load.planned == 100
    assert "random (batch 10)" not in [entry.label for entry in scenario.entries]


def test_a_plan_has_complete_blocks_in_random_order() -> None:
    """Every entry once per block and one seed per block; the same seed gives the same plan."""
    scenario = load_scenario("regions")
    runs = plan(scenario)
    blocks = [[run for run in runs if run.block == block] for block in range(scenario.blocks)]
    labels = sorted(entry.label for entry in scenario.entries)
    assert all(sorted(run.label for run in block) == labels for block in blocks)
    assert all(len({run.seed for run in block}) == 1 for block in blocks)
    assert len({tuple(run.label for run in block) for block in blocks}) == len(blocks)
    assert len({block[0].seed for block in blocks}) == len(blocks)
    assert plan(scenario) == runs
    assert plan(scenario.model_copy(update={"seed": 2})) != runs


def test_the_balancer_s_configuration() -> None:
    """Options of any shape are written as they were read."""
    scenario = load_scenario("regions")
    entry = next(entry for entry in scenario.entries if entry.label == "single-region")
    parsed = tomllib.loads(balancer_config(scenario, entry, 7, endpoints_of(scenario)))
    assert parsed["policy"] == {"name": "single-region", "region": "emea"}
    assert parsed["seed"] == 7
    assert parsed["endpoints"][2] == {
        "id": "us-0",
        "region": "us",
        "address": "http://127.0.0.1:9002",
        "weight": 1,
        "round_trip": 0.45,
    }


def test_endpoints_state_their_round_trips() -> None:
    """Handshakes on loopback do not show them. Where there is no distance, nothing is stated."""
    raw = {**load_scenario("regions").model_dump(mode="json"), "time_scale": 0.5}
    raw["regions"][0]["rtt"] = 0
    scenario = Scenario.model_validate(raw)
    stated = {endpoint["region"]: endpoint.get("round_trip") for endpoint in endpoints_of(scenario)}
    assert stated == {"emea": None, "us": 0.225, "asia": 0.29}


def test_balancer_settings_of_an_entry_are_merged_with_the_scenario_s() -> None:
    """Defaults are the balancer's own and are not written."""
    raw = load_scenario("homogeneous").model_dump(mode="json")
    raw["balancer"] = {"retries": 1, "outlier_detection": {"failures": 3, "base_time": 5.0}}
    raw["entries"][0]["balancer"] = {"retries": 0, "outlier_detection": {"failures": 0}}
    scenario = overridden(Scenario.model_validate(raw), Overrides())
    entry = scenario.entries[0]
    settings = {"retries": 0, "outlier_detection": {"failures": 0, "base_time": 5.0}}
    assert scenario.balancer_settings(entry) == settings
    assert scenario.mechanisms_of(entry).outlier_detection.window == 30.0
    assert scenario.mechanisms_of(scenario.entries[1]).outlier_detection.failures == 3
    parsed = tomllib.loads(balancer_config(scenario, entry, 7, endpoints_of(scenario)))
    assert {key: parsed[key] for key in settings} == settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retrys": 1}, "balancer: retrys: Extra inputs"),
        (
            {"outlier_detection": {"failures": -1}},
            r"balancer: outlier_detection\.failures: Input should be greater",
        ),
    ],
)
def test_an_invalid_key_for_the_balancer_is_reported(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tiny.toml"
    head, _, rest = MINIMAL.partition("[[regions]]")
    path.write_text(f"{head}balancer = {toml(settings)}\n[[regions]]{rest}", encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        load_scenario(str(path))


def test_workers_differ_in_speed_weight_and_connections() -> None:
    """Each gets its own speed; the balancer its weight, and https where connecting takes more round trips."""
    keys = {"speed": [1, 0.5], "weights": [2, 1], "idle_timeout": 4.0, "setup_rtts": 2}
    keys |= {"priorities": [0, 1], "max_in_flight": [5, 6]}
    region = {"name": "here", "workers": 2, "rtt": 0.01, **keys}
    scenario = load_scenario("homogeneous").model_copy(update={"regions": (Region.model_validate(region),)})
    argv = " ".join(worker_argv(scenario, scenario.regions[0], 1, seed=9))
    assert "--speed 0.5" in argv
    assert "--keep-alive 4s --tls 1.3" in argv
    parsed = tomllib.loads(balancer_config(scenario, scenario.entries[0], 7, endpoints_of(scenario)))
    assert [endpoint["weight"] for endpoint in parsed["endpoints"]] == [2, 1]
    assert [endpoint.get("priority") for endpoint in parsed["endpoints"]] == [None, 1]
    assert [endpoint["max_in_flight"] for endpoint in parsed["endpoints"]] == [5, 6]
    assert parsed["endpoints"][0]["address"] == "https://127.0.0.1:9000"
    assert parsed["upstream_tls"] == {"verify": False}


@pytest.mark.parametrize("key", ["speed", "weights", "priorities", "max_in_flight"])
def test_lists_need_a_number_for_each_worker(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}: must have 2 numbers"):
        Region.model_validate({"name": "here", "workers": 2, "rtt": 0.01, key: [1]})


def test_nested_tables_and_lists_in_toml() -> None:
    """A policy may wrap another."""
    value = {"name": "region-aware", "inner": {"name": "random", "x": [1, 2.5, True]}, "quote": 'a "b"'}
    assert tomllib.loads(f"policy = {toml(value)}")["policy"] == value


def test_command_line_of_a_worker() -> None:
    """Durations carry their unit."""
    scenario = load_scenario("regions").model_copy(update={"time_scale": 0.1})
    argv = worker_argv(scenario, scenario.regions[2], 1, seed=9)
    flags = argv[argv.index("serve") + 1 :]
    options = dict(zip(flags[::2], flags[1::2], strict=True))
    assert options["--name"] == "asia-1"
    assert options["--rtt"] == "580ms"
    assert options["--time-scale"] == "0.1"
    assert options["--seed"] == "9"
