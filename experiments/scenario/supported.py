"""Checks that a scenario can run on real processes or in the simulator, made before it starts.

Every key of a scenario is either implemented by the runs for which it is meant or rejected here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.errors import BadInputError
from experiments.scenario.balancer_keys import complaint_about
from experiments.scenario.oracles import is_oracle
from experiments.scenario.places import TLS
from experiments.scenario.scenario import Entry, Scenario
from policies.registry import picks_by_key, reads_reports

ONLY_SIMULATED = "only the simulator can do that: experiments run --simulated"

READ_SETTINGS = frozenset({"retries", "shared"})
"""Keys of `[balancer]` that a run with engines reads."""

UNREAD_OF_REGIONS = ("service", "slots", "queue", "discipline", "idle_timeout", "setup_rtts", "max_in_flight")
"""Keys of a region that describe workers of another kind."""

MOST_PROCESSES = 64
"""Maximum number of workers of one region that are started as processes on this machine."""


def require_live(scenario: Scenario) -> None:
    """Raise `BadInputError` for the first feature that only the simulator supports."""
    for complaint in complaints(scenario):
        raise BadInputError(f"{scenario.name}: {complaint}")


def require_simulated(scenario: Scenario) -> None:
    """Raise `BadInputError` for the first setting that the simulator would ignore."""
    for entry in scenario.entries:
        require_simulated_entry(scenario, entry)
        if scenario.balancers == 1 and scenario.mechanisms_of(entry).shared.enabled:
            raise BadInputError(
                f"{scenario.name}: entry {entry.label}: balancer.shared.enabled: is not read with balancers = 1; "
                "leave it out"
            )


def require_simulated_entry(scenario: Scenario, entry: Entry) -> None:
    """Raise `BadInputError` for the first setting of the entry's balancer that the simulator would ignore."""
    for unread in unread_with_engines(scenario):
        raise BadInputError(f"{scenario.name}: {unread}")
    complaint = complaint_about(scenario.balancer_settings(entry))
    if complaint is not None:
        raise BadInputError(f"{scenario.name}: entry {entry.label}: {complaint}")


def reads_reports_of(entry: Entry) -> bool:
    return not is_oracle(entry.policy.name) and reads_reports(entry.policy.model_dump())


def doubts_about_keys(policies: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a sentence if some of these policies, with their labels, pick by the key that requests here have not."""
    labels = {label: None for label, spec in policies if not is_oracle(spec["name"]) and picks_by_key(spec)}
    if labels:
        yield f"Requests here have no keys, so these pick as they do without one: {', '.join(labels)}."


def complaints(scenario: Scenario) -> Iterator[str]:
    """Yield a message for every feature that real processes do not support."""
    yield from unread_with_engines(scenario)
    if scenario.staleness:
        yield f"staleness = {scenario.staleness:g}: {ONLY_SIMULATED}"
    if scenario.balancers > 1:
        yield f"balancers = {scenario.balancers}: {ONLY_SIMULATED}"
    yield from too_near(scenario)
    for entry in scenario.entries:
        if scenario.mechanisms_of(entry).shared.enabled:
            yield f"balancer.shared.enabled of {entry.label}: {ONLY_SIMULATED}"
        if is_oracle(entry.policy.name):
            yield f"policy '{entry.policy.name}': {ONLY_SIMULATED}"
    for number, region in enumerate(scenario.regions):
        if region.workers > MOST_PROCESSES:
            yield (
                f"regions.{number}.workers = {region.workers}: more than {MOST_PROCESSES} processes; {ONLY_SIMULATED}"
            )
        if region.discipline != "fifo":
            yield f"regions.{number}.discipline = {region.discipline!r}: {ONLY_SIMULATED}"
        if region.setup_rtts not in (1, *TLS):
            yield f"regions.{number}.setup_rtts = {region.setup_rtts}: real processes take 1, 2 or 3"


def too_near(scenario: Scenario) -> Iterator[str]:
    """Yield a message for every rtt event on a worker without a delay line, which cannot be added during a run."""
    workers = zip(scenario.workers, scenario.numbered_workers, strict=True)
    near = [(worker, region.name) for worker, (region, _) in workers if region.rtt == 0]
    for number, event in enumerate(scenario.events):
        if event.kind == "rtt" and any(event.targets(*place) for place in near):
            yield f"events.{number}: rtt cannot change where a region's rtt is 0; give it 0.0001"


def unread_with_engines(scenario: Scenario) -> Iterator[str]:
    """Yield a message for every key that a run with engines would not read, or needs."""
    load, asked = scenario.load, scenario.inference
    if asked is None:
        return
    if load.mode != "open":
        yield "load.mode: must be 'open' with [inference]: a closed loop waits for slow engines"
    if asked.prompts is None and load.arrivals != "replay":
        yield "inference.prompts: needed, unless load.file is a trace of inference"
    if scenario.events:
        yield "events: are not simulated with [inference]; leave them out"
    if scenario.time_scale != 1:
        yield "time_scale: must be 1 with [inference]"
    for number, region in enumerate(scenario.regions):
        for key in UNREAD_OF_REGIONS:
            if getattr(region, key) != type(region).model_fields[key].default:
                yield f"regions.{number}.{key}: is not read with [inference]; leave it out"
    for entry in scenario.entries:
        for key in sorted(scenario.balancer_settings(entry).keys() - READ_SETTINGS):
            yield f"balancer.{key}: is not simulated with [inference]; leave it out"
        if is_oracle(entry.policy.name):
            yield f"entries.{entry.label}.policy: oracles know no engines; leave it out"
