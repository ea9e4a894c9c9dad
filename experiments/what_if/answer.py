"""What-if simulation of recorded traffic, on workers like the recorded ones, with other regions or policies.

Every answer comes with the error of a simulation of what was recorded, so that its reliability can be judged. A failed
request counts as slow as the scenario's deadline in every latency.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from experiments.errors import BadInputError
from experiments.platform.terminal import signals_interrupt
from experiments.recorded.recording import OK, Recording
from experiments.results.directory import plan
from experiments.run_data import Run
from experiments.scenario.files import first_complaint
from experiments.scenario.labels import policy_label
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import Simulate
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Comparison, compare_pairs
from experiments.stats.measures import deadline_mapped, goodput, percentile, statistics_row
from experiments.stats.run_summary import ceiling_per_block, parts_per_label, summarise_run, values_per_block
from experiments.verdict.phrases import UNITS, show
from experiments.what_if.fit import RegionFit

CLOSE_ERROR = 0.1
"""Relative error of a simulated quantile up to which it is called close."""

CLOSE_GOODPUT = 0.01
"""Error of a simulated goodput, as a share, up to which it is called close."""

FULL_UTILISATION = 0.95
"""Utilisation of the workers from which on queues grow for long."""


@dataclass(frozen=True, slots=True)
class Question:
    """Regions that are `lost`, `policies` by label (name and options), and `blocks` simulations of each."""

    lost: tuple[str, ...]
    policies: dict[str, dict[str, Any]]
    blocks: int = 8
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the answer. Seconds, failures at the deadline; `failed` and `goodput` are shares (0..1) of requests.

    `world` is recorded or simulated. `invalid` is why runs do not count; empty if all do.
    """

    label: str
    world: str
    regions: str
    requests: int
    rate: float
    p50: float
    p99: float
    mean: float
    failed: float
    goodput: float
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """`lines` begin with the recorded and its simulated counterpart, which are all if nothing was changed;
    `utilisation` is that of the remaining workers of the first priority level.

    `slo` is what goodput is within, in seconds. `left_out` are regions that are not lost, but of which too little is
    known to simulate them; policies are not compared then.
    """

    question: Question
    regions: tuple[RegionFit, ...]
    lines: tuple[Line, ...]
    comparisons: tuple[Comparison, ...]
    utilisation: float
    slo: float
    left_out: tuple[str, ...] = ()

    @property
    def error(self) -> tuple[float, float, float]:
        """Relative error of the simulation of what was recorded, in p50, p99 and mean."""
        was, now = self.lines[:2]
        return now.p50 / was.p50 - 1, now.p99 / was.p99 - 1, now.mean / was.mean - 1

    @property
    def goodput_error(self) -> float:
        """Goodput of the simulation of what was recorded, less that recorded: a difference of shares."""
        recorded, simulated = self.lines[:2]
        return simulated.goodput - recorded.goodput

    @property
    def sentences(self) -> list[str]:
        return [*self._answers(), *map(compared, self.comparisons), *self._trust()]

    def _answers(self) -> Iterator[str]:
        before, lost = self.lines[1], " and ".join((*self.question.lost, *self.left_out))
        where = f"Without {lost}" if lost else "With all regions"
        if self.left_out:
            yield (
                f"Too few answers of {' and '.join(self.left_out)} are recorded to simulate it, so policies are not "
                "compared; --without-region compares them without it."
            )
        if self.utilisation >= FULL_UTILISATION:
            yield (
                f"{where} this traffic needs {self.utilisation:.0%} of what the workers can serve: queues grow, and "
                "no policy can help."
            )
        for line in self.lines[1:]:
            if line.invalid:
                yield f"INVALID: {line.label} with {line.regions}: {line.invalid}."
        for line in (line for line in self.lines[2:] if not (line.invalid or before.invalid)):
            yield (
                f"{where}, under {line.label}, this traffic would see a p99 of {line.p99 * 1e3:.0f} ms "
                f"(×\u00a0{line.p99 / before.p99:.2f} of what it is), a mean of {line.mean * 1e3:.0f} ms "
                f"(×\u00a0{line.mean / before.mean:.2f}), {line.failed:.1%} failures, and {line.goodput:.1%} answered "
                f"within {self.slo:g} s."
            )

    def _trust(self) -> Iterator[str]:
        if self.lines[1].invalid:
            return
        p50, p99, mean = self.error
        is_close = max(map(abs, self.error)) <= CLOSE_ERROR and abs(self.goodput_error) <= CLOSE_GOODPUT
        yield (
            f"Simulated, what was recorded has a p50 {p50:+.0%}, a p99 {p99:+.0%} and a mean {mean:+.0%} off what "
            f"it was, and a goodput {100 * self.goodput_error:+.1f} points off: "
            + ("close." if is_close else "smaller differences mean nothing.")
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "without": list(self.question.lost),
            "left_out": list(self.left_out),
            "utilisation": self.utilisation,
            "regions": [described(region) for region in self.regions],
            "lines": [asdict(line) for line in self.lines],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "error": dict(zip(("p50", "p99", "mean"), self.error, strict=True))
            | {"goodput": self.goodput_error},
            "slo": self.slo,
            "answer": self.sentences,
        }


def described(region: RegionFit) -> dict[str, Any]:
    """Estimates of a region for JSON."""
    return {
        "region": region.name,
        "workers": [worker.endpoint.id for worker in region.workers],
        "requests": region.requests,
        "rtt": region.rtt,
        "service": region.shape.text(region.mean),
        "distance": region.shape.distance,
        "speed": list(region.speed),
        "slots": region.slots,
        "reported": all(worker.is_reported for worker in region.workers),
        "capacity": region.capacity,
    }


def region_in_words(region: RegionFit, rate: float) -> str:
    """Estimates of a region as one line with their source. `rate` is its recorded requests per second."""
    is_reported = all(worker.is_reported for worker in region.workers)
    source = "as workers report" if is_reported else "from latencies"
    count, slots = len(region.workers), region.slots
    return (
        f"{region.name}: {count} worker{'s' * (count != 1)}, {region.shape.text(region.mean)} {source} "
        f"(distance {region.shape.distance:.2f}), {slots} slot{'s' * (slots != 1)}, round trip "
        f"{region.rtt * 1e3:.0f} ms, {rate / region.capacity:.0%} of its capacity in use"
    )


def compared(comparison: Comparison) -> str:
    """Comparison of two simulated policies as a sentence."""
    what = UNITS[GOODPUT] if comparison.judged_by == GOODPUT else comparison.measure
    return (
        f"{what} of {comparison.label} would be {show(comparison.interval)} times that of "
        f"{comparison.baseline}: {comparison.standing}."
    )


def answer(
    recording: Recording,
    path: Path,
    regions: Sequence[RegionFit],
    question: Question,
    simulate: Simulate,
    notify: Callable[[str], None] = lambda line: None,
) -> WhatIfAnswer:
    """Simulate the recorded situation, then the question; `path` holds the arrivals; each run's label goes to `notify`.

    Raises `BadInputError`.
    """
    known = {*question.lost, *(region.name for region in regions)}
    left_out = tuple(name for name in recording.regions if name not in known)
    left = [region for region in regions if region.name not in question.lost]
    was = {policy_label(recording.policy, {}): recording.policy}
    before = scenario_of(recording, path, regions, was, question)
    after = scenario_of(recording, path, left, question.policies, question)
    runs_before = simulated(before, simulate, notify)
    runs_after = {} if after == before else simulated(after, simulate, notify)
    lines = [recorded_line(recording, before)]
    for scenario, there, by_label in ((before, regions, runs_before), (after, left, runs_after)):
        names = " ".join(region.name for region in there)
        lines += [line_of(label, names, runs, scenario.slo) for label, runs in by_label.items()]
    summaries = [
        summarise_run(run, after.slo, is_replay=True) for runs in runs_after.values() for run in runs
    ]
    able = [line.label for line in lines[2:] if not line.invalid]
    is_compared = after.baseline in able and not left_out
    pairs = [(label, after.baseline) for label in able if label != after.baseline and is_compared]
    comparisons: list[Comparison] = []
    for measure in ("p99", "mean"):
        values = values_per_block(list(runs_after), summaries, measure)
        ceiling = ceiling_per_block(list(runs_after), summaries, measure)
        parts = parts_per_label(list(runs_after), summaries, measure)
        comparisons += compare_pairs(measure, values, pairs, ceiling=ceiling, parts=parts)[0]
    levels = [(w.endpoint.priority, region.slots / w.mean) for region in left for w in region.workers]
    utilisation = lines[0].rate / sum(capacity for level, capacity in levels if level == min(levels)[0])
    return WhatIfAnswer(
        question, tuple(regions), tuple(lines), tuple(comparisons), utilisation, after.slo, left_out
    )


def simulated(scenario: Scenario, simulate: Simulate, notify: Callable[[str], None]) -> dict[str, list[Run]]:
    """Simulate every entry in every block with the block's seed, so that all have the same demand."""
    runs: dict[str, list[Run]] = {entry.label: [] for entry in scenario.entries}
    for planned in plan(scenario):
        notify(planned.label)
        entry = scenario.entry(planned.label)
        with signals_interrupt():
            run = simulate(scenario, entry, planned.block, planned.order, planned.seed)
        runs[planned.label].append(run)
    return runs


def scenario_of(
    recording: Recording,
    path: Path,
    regions: Sequence[RegionFit],
    policies: dict[str, dict[str, Any]],
    question: Question,
) -> Scenario:
    """The recording as a scenario with these regions. Raises `BadInputError`."""
    if not regions:
        raise BadInputError("--without-region: leaves no endpoint")
    names = {region.name: plain(region.name) for region in regions}
    nearest = min(regions, key=lambda region: region.rtt).name
    home = recording.home_region if recording.home_region in names else nearest
    seconds = float(recording.instants[-1]) + 1e-3
    content = {
        "name": "what-if",
        "question": "This traffic, on these workers, under these policies?",
        "source": f"recorded: {path}",
        "baseline": next(iter(policies)),
        "home_region": names[home or nearest],
        "blocks": question.blocks,
        "seed": question.seed,
        "load": {
            "mode": "open",
            "arrivals": "replay",
            "file": str(path),
            "rate": len(recording) / seconds,
            "duration": seconds,
        },
        "regions": [
            {
                "name": names[region.name],
                "workers": len(region.workers),
                "rtt": region.rtt,
                "service": region.shape.text(region.mean),
                "slots": region.slots,
                "speed": region.speed,
                "weights": tuple(worker.endpoint.weight for worker in region.workers),
                "priorities": tuple(worker.endpoint.priority for worker in region.workers),
                "max_in_flight": tuple(worker.endpoint.max_in_flight for worker in region.workers),
            }
            for region in regions
        ],
        "entries": [{"label": label, "policy": policy} for label, policy in policies.items()],
    }
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise BadInputError(f"{path}: does not make a scenario: {first_complaint(error)}") from None


def plain(name: str) -> str:
    """Region name as scenarios allow it."""
    word = re.sub(r"[^a-z0-9-]", "-", name.lower())
    return word if word[:1].isalpha() else f"r-{word}"


def recorded_line(recording: Recording, scenario: Scenario) -> Line:
    """Row of the recorded traffic, by the deadline and the SLO of the scenario. Raises `BadInputError`."""
    is_good = (recording.rows["end"] == OK) & np.isfinite(recording.total)
    span = float(recording.instants[-1])
    if not is_good.any() or not span:
        raise BadInputError("the recording holds no success, or a single instant")
    taken = np.nan_to_num(recording.total, nan=0.0)
    mapped = np.where(is_good, taken, np.maximum(taken, scenario.timeout))
    return Line(
        policy_label(recording.policy, {}), "recorded", " ".join(recording.regions), len(recording),
        len(recording) / span, percentile(mapped, 50), percentile(mapped, 99), float(mapped.mean()),
        1 - float(is_good.mean()), float(np.mean(is_good & (taken <= scenario.slo))),
    )  # fmt: skip


def line_of(label: str, regions: str, runs: Sequence[Run], slo: float) -> Line:
    """Row of one entry over its runs, their samples pooled."""
    row, mapped = statistics_row(runs), np.concatenate([deadline_mapped(run) for run in runs])
    span = sum(run.samples.span for run in runs)
    reasons = (reason for run in runs for reason in run.facts.invalid_reasons)
    return Line(
        label, "simulated", regions, row.total // len(runs), row.total / span if span else 0.0,
        percentile(mapped, 50), percentile(mapped, 99), float(mapped.mean()), row.ko_percent / 100,
        goodput(runs, slo), next(reasons, ""),
    )  # fmt: skip
