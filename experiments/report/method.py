"""The method section of a report: what is needed to judge and repeat the measurement.

Only facts from the files are stated.
"""

from __future__ import annotations

from experiments.scenario.scenario import Scenario
from experiments.scenario.service import LiveScenario, RunningScenario, ServiceScenario
from experiments.stats.comparison import ENOUGH_BLOCKS
from experiments.stats.measures import ACHIEVED_LIMIT, MOST_LAG
from experiments.verdict.summary import Summary
from experiments.verdict.verdict import noise_line

SIMULATED = (
    "Simulated: the balancer's own policies and mechanisms in virtual time; workers, network and clients are worked "
    "out. Nothing was measured."
)


def method_lines(summary: Summary) -> list[str]:
    scenario = summary.scenario
    lines = [
        f"Repeat it: {summary.command}",
        *setup_lines(scenario),
        blocks_text(summary),
        *([] if isinstance(scenario, LiveScenario) else generator_lines(scenario)),
        noise_line(summary.noise_floor.get(summary.measure), summary.world == "simulated"),
        f"Started {summary.started_at} on {summary.machine}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in summary.versions.items()) + ".",
        *(f"Policy file: {file.path}, version {file.version}." for file in summary.policy_files),
    ]
    simulated = [SIMULATED] if summary.world == "simulated" else []
    source = [f"Source: {scenario.source}"] if scenario.source else []
    if (scale := scenario.time_scale) != 1:
        lines.append(
            f"Time scale {scale:g}: 1 s of the scenario took {scale:g} s. Figures are in measured time."
        )
    return [*simulated, *source, *lines]


def generator_lines(scenario: Scenario) -> list[str]:
    """The load, what is measured of it, and when its generator makes a run invalid."""
    end = "last byte" if scenario.inference is None else "first token"
    return [
        load_text(scenario),
        f"Latency runs from the instant at which a request was due to its {end}, service time from the instant at "
        "which it was sent.",
        f"A run is invalid when the generator's lag may be more than {100 * MOST_LAG:g} % of its mean or p99, when it "
        f"was interrupted, or when an open loop sent less than {ACHIEVED_LIMIT:.0%} of the offered rate.",
        "Its block then counts for no entry, because an entry may itself make the generator late, and a difference "
        "that the late runs contradict is undecided. In valid runs, too, one is claimed only if it is there without "
        "the lag.",
        f"Seed {scenario.seed}: the same arrivals and demand for every entry of a block.",
    ]


def setup_lines(scenario: Scenario) -> list[str]:
    """What gets the load, and its warm-up."""
    if isinstance(scenario, LiveScenario):
        return [
            f"Set-up: the balancer at {scenario.url}, which ran already, and its own traffic. Each policy has "
            f"{scenario.period:g} s in a block; the first {scenario.washout:g} s do not count, in which requests that "
            "its predecessor placed are answered.",
            "Latency runs from the instant of sending a request to a worker to its last byte, from histograms with "
            "buckets a tenth wide: within 5 %. Failures are errors of the balancer, rejections included, and 5xx.",
        ]
    if isinstance(scenario, ServiceScenario):
        return [
            f"Set-up: a service that ran already. {scenario.service.in_words}.",
            f"Warm-up: {scenario.service.warmup:g} s of the same rate before each run, kept out of every figure.",
        ]
    if (asked := scenario.inference) is not None:
        return [
            f"Set-up: {engines_text(scenario)}. Each computes {asked.prefill:g} tokens of prompts per second, a step "
            f"of {asked.base * 1e3:g} ms and {asked.per_sequence * 1e3:g} ms per answer, at most {asked.max_batch} at "
            f"a time, and caches {asked.kv_tokens} tokens. Caches are empty at the start."
        ]
    return [
        f"Set-up: {regions_text(scenario)}; home region {scenario.home_region}.",
        f"Warm-up: {scenario.warmup} requests per worker before each run, kept out of every figure.",
    ]


def engines_text(scenario: Scenario) -> str:
    """Describe balancers and engines, for example `1 balancer; here 8 engines at 0 ms RTT`."""
    regions = (f"{one.name} {one.workers} engines at {one.rtt * 1e3:g} ms RTT" for one in scenario.regions)
    return "; ".join((f"{scenario.balancers} balancer{'s' * (scenario.balancers != 1)}", *regions))


def regions_text(scenario: Scenario) -> str:
    """Describe each region, for example `emea 2 workers at 350 ms RTT (service 19-21ms, 1 slot)`."""
    return "; ".join(
        f"{region.name} {region.workers} workers at {region.rtt * 1e3:g} ms RTT "
        f"(service {region.service}, {region.slots} slot{'s' * (region.slots != 1)})"
        for region in scenario.regions
    )


def load_text(scenario: Scenario) -> str:
    """Describe the load, including the meaning of "batch"."""
    load = scenario.load
    if load.mode == "open":
        return (
            f"Load: open loop, {load.in_words} arrivals for {load.duration:g} s at "
            "instants fixed beforehand; a slow answer delays no later request."
        )
    return (
        f"Load: closed loop, {load.requests} requests, a sliding batch of {load.batch} (an entry may have "
        "its own): as soon as one returns the next is sent. A request is due when its slot becomes free."
    )


def blocks_text(summary: Summary) -> str:
    planned = summary.scenario.blocks
    missing = f", {summary.missing_runs} planned runs are missing" if summary.missing_runs else ""
    is_fresh = not isinstance(summary.scenario, RunningScenario)
    fresh = ", with fresh workers and a fresh balancer for every run" if is_fresh else ""
    return (
        f"Randomised complete blocks: {planned} planned, {summary.blocks} with valid runs{missing}. Each "
        f"block runs every entry once in a fresh random order{fresh}. An interval takes {ENOUGH_BLOCKS} blocks."
    )
