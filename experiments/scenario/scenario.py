"""A scenario: the question, the regions, the load, and the entries to compare.

A scenario is frozen data, every key states its unit once, and an unknown key is an error. Durations are in scenario
seconds; `time_scale` compresses all of them at once.

A preset is a named list of policies that a scenario compares when it lists no entries of its own. It ends with an A/A
control of the baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from balancer.config.schema.section import InSeconds
from experiments.errors import BadInputError
from experiments.platform.printable import PrintableLine, PrintableName
from experiments.scenario.events import ALL, Event
from experiments.scenario.inference import Inference
from experiments.scenario.labels import policy_label
from experiments.scenario.load import Load
from experiments.scenario.mechanisms import BalancerTable, Mechanisms, merged
from experiments.scenario.oracles import is_oracle
from experiments.scenario.table import Blocks, Duration, Model, Requests, Warmup
from experiments.scenario.thresholds import parse_threshold
from workers.service import parse_profile

Measure = Literal["throughput", "p99", "mean"]


def checked_threshold(text: str) -> str:
    """Validate a threshold, with the message of `parse_threshold` as a `ValueError` for pydantic."""
    try:
        return parse_threshold(text).text
    except BadInputError as error:
        raise ValueError(str(error)) from None


def policy_table(value: object) -> object:
    """Expand `policy = "random"` to `[policy] name = "random"`."""
    return {"name": value} if isinstance(value, str) else value


class PolicySpec(BaseModel):
    """A policy by name; any further key is an option passed to that policy unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = Field(min_length=1, description="a name that the balancer knows, e.g. region-aware")


def checked_service(text: str) -> str:
    """Validate a service-time profile in the workers' syntax. Raises `ValueError`."""
    if not parse_profile(text).mean <= LONGEST_SERVICE:
        raise ValueError(f"must take at most {LONGEST_SERVICE:g} s on average")
    return text


MOST_WORKERS = 100_000
MOST_SLOTS = 10_000_000
MOST_STATES = 1_000_000
LONGEST_SERVICE = 86_400.0
MAX_LISTED_NAMES = 50
"""Maximum number of known names listed in a message."""

Service = Annotated[PrintableLine, AfterValidator(checked_service)]
ThresholdText = Annotated[str, AfterValidator(checked_threshold)]
Policy = Annotated[PolicySpec, BeforeValidator(policy_table)]
Positive = Annotated[float, Field(ge=1e-6, le=1e6)]
Level = Annotated[int, Field(ge=0, le=127)]
Count = Annotated[int, Field(ge=1)]


class Region(Model):
    """A region and its workers, which are named `<region>-0`, `<region>-1`, …"""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=80, description="short lower-case name")
    workers: int = Field(
        default=2, ge=1, le=10_000, description="how many; simulator only, where more than 64"
    )
    rtt: Annotated[float, InSeconds] = Field(ge=0, le=10, description="round trip from the balancer, seconds")
    service: Service = Field(
        default="19-21ms", description="service time as `workers serve --service` takes it"
    )
    slots: int = Field(
        default=1, ge=1, le=10_000, description="requests that a worker serves at the same time"
    )
    queue: int = Field(
        default=1000, ge=0, le=10_000_000, description="requests that may wait at a worker; more get 503"
    )
    discipline: Literal["fifo", "sharing"] = Field(
        default="fifo", description="sharing: all requests at once, each slower; simulator only"
    )
    speed: tuple[Positive, ...] = Field(
        default=(), description="of each worker, 2 serves twice as fast; none: all as fast"
    )
    weights: tuple[Positive, ...] = Field(
        default=(), description="of each worker, as configured in the balancer; none: all 1"
    )
    priority: Level = Field(default=0, description="0, or the level of a backup, as in the balancer")
    priorities: tuple[Level, ...] = Field(default=(), description="of each worker; none: all `priority`")
    max_in_flight: tuple[Count | None, ...] = Field(default=(), description="of each worker; none: no limit")
    idle_timeout: Duration | None = Field(
        default=None, description="seconds after which workers close an idle connection; None: never"
    )
    setup_rtts: int = Field(
        default=1,
        ge=0,
        le=4,
        description="round trips to set a connection up: 1 TCP, 2 and TLS 1.3, 3 and TLS 1.2",
    )

    @model_validator(mode="after")
    def lists_are_whole(self) -> Self:
        """Check that lists have one number per worker, or none."""
        for key in ("speed", "weights", "priorities", "max_in_flight"):
            if len(getattr(self, key)) not in (0, self.workers):
                raise ValueError(f"{key}: must have {self.workers} numbers, one for each worker, or none")
        return self

    def speed_of(self, number: int) -> float:
        """Relative speed of worker `number` of this region."""
        return self.speed[number] if self.speed else 1.0

    def weight_of(self, number: int) -> float:
        """Weight of worker `number` of this region."""
        return self.weights[number] if self.weights else 1.0

    def priority_of(self, number: int) -> int:
        """Priority level of worker `number` of this region."""
        return self.priorities[number] if self.priorities else self.priority

    def max_in_flight_of(self, number: int) -> int | None:
        """Limit of requests at once of worker `number` of this region."""
        return self.max_in_flight[number] if self.max_in_flight else None


DESCRIPTIVE = frozenset(
    {"question", "source", "group", "measure", "baseline", "blocks", "seed", "thresholds", "quick"}
)
"""Keys of a scenario that do not affect a single run."""


class Entry(Model):
    """One competitor: a policy, optionally with its own batch and balancer settings."""

    label: PrintableName = Field(
        min_length=1,
        max_length=40,
        description="unique; stands in every table and legend; default: the policy's name and options",
    )
    policy: Policy
    batch: int | None = Field(default=None, ge=1, le=20_000, description="overrides the load's batch")
    balancer: BalancerTable = Field(default={}, description="keys of the scenario's own that are others here")
    repeat_of: str | None = Field(
        default=None, description="label of the entry that this repeats: an A/A control"
    )
    thresholds: tuple[ThresholdText, ...] = Field(
        default=(), max_length=100, description="for this entry only"
    )

    @model_validator(mode="before")
    @classmethod
    def _has_label(cls, document: Any) -> Any:
        """Label an entry without a label by its policy."""
        if not isinstance(document, dict) or "label" in document:
            return document
        policy = policy_table(document.get("policy"))
        if not isinstance(policy, dict) or not isinstance(policy.get("name"), str):
            return document
        return {**document, "label": policy_label(policy, {})}


def may_win(entry: Entry) -> bool:
    """Whether an entry competes: no oracle, which no balancer can run, and no repetition for an A/A control."""
    return entry.repeat_of is None and not is_oracle(entry.policy.name)


class Quick(Model):
    """Values that `--quick` uses, so that the whole campaign ends in about a minute."""

    blocks: Blocks = Field(default=1)
    requests: Requests = Field(default=300, description="requests per run; closed loop")
    duration: Duration = Field(default=5.0, description="seconds of arrivals per run; open loop")
    warmup: Warmup = Field(default=10, description="warm-up requests per worker")


BASELINE = "round-robin"

STANDARD = (
    "random",
    "round-robin",
    "least-in-flight",
    "latency-weighted",
    "least-time",
    "peak-ewma",
    "reported-load",
    "c3",
    "prequal",
    "join-idle-queue",
    "steelyard",
)
REGIONS = (
    "random",
    "round-robin",
    "region-round-robin",
    "region-aware",
    "least-in-flight",
    "latency-weighted",
    "peak-ewma",
    "c3",
    "prequal",
    "steelyard",
)
PRESETS = {"standard": STANDARD, "regions": REGIONS}


def expanded(raw: Any) -> Any:
    """Scenario document with the entries of its `preset` before its own. Raises `ValueError` for an unknown one."""
    if not isinstance(raw, dict) or "preset" not in raw:
        return raw
    rest = {key: value for key, value in raw.items() if key not in ("preset", "entries")}
    preset, others = raw["preset"], raw.get("entries", [])
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset: unknown {str(preset)[:40]!r}; known: {', '.join(PRESETS)}")
    if not isinstance(others, list | tuple):
        raise ValueError("entries: must be a list of tables")
    entries = [{"label": name, "policy": name} for name in PRESETS[preset]]
    # the label seeds the policy's random numbers, so another one changes the stored figures
    control = {"label": f"{BASELINE} again", "policy": BASELINE, "repeat_of": BASELINE}
    has_own = any(isinstance(other, dict) and other.get("repeat_of") for other in others)
    return {**rest, "entries": [*entries, *others, *([] if has_own else [control])]}


class Scenario(Model):
    """The whole experiment. `baseline` is the label that every other entry is compared with."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64)
    question: PrintableLine = Field(min_length=1, description="one line that ends in a question mark")
    group: PrintableName = Field(
        default="other", description="the heading under which `experiments show` shows it"
    )
    source: str = Field(default="", description="where the set-up comes from, and what it showed there")
    measure: Measure = Field(default="p99", description="what decides the ranking")
    baseline: str
    home_region: str
    slo: Duration = Field(default=1.0, description="seconds within which an answer is good (goodput)")
    timeout: Duration = Field(default=30.0, description="seconds after which a request counts as failed")
    warmup: Warmup = Field(default=50, description="requests per worker before each run, kept out of it")
    blocks: Blocks = Field(default=8, description="how often every entry is run")
    seed: int = Field(default=1, ge=0, lt=2**63, description="of order, arrivals, demand and policies")
    time_scale: float = Field(
        default=1.0, ge=1e-4, le=10, description="seconds that 1 s of the scenario takes"
    )
    thresholds: tuple[ThresholdText, ...] = Field(default=(), max_length=100, description="for every entry")
    load: Load = Load()
    quick: Quick = Quick()
    regions: tuple[Region, ...] = Field(min_length=1, max_length=1000)
    events: tuple[Event, ...] = Field(
        default=(), max_length=10_000, description="what happens to workers in the middle of a run"
    )
    balancer: BalancerTable = Field(
        default={},
        description="tables of the balancer's configuration: retries, hedging, health_checks, …",
    )
    balancers: int = Field(
        default=1, ge=1, le=1000, description="that share the load evenly, all in home_region"
    )
    staleness: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="seconds by which a balancer knows of workers' reports; simulator only",
    )
    inference: Inference | None = Field(default=None, description="workers are inference engines")
    entries: tuple[Entry, ...] = Field(min_length=1, max_length=1000)

    _with_preset = model_validator(mode="before")(expanded)

    @model_validator(mode="after")
    def names_agree(self) -> Self:
        require_labels(self)
        regions = [region.name for region in self.regions]
        require_unique("regions", regions)
        require_known("home_region", self.home_region, regions)
        require_room(self)
        targets = dict.fromkeys([ALL, *regions, *self.workers])
        for number, event in enumerate(self.events):
            require_known(f"events.{number}.target", event.target, targets)
            if self.load.mode == "open" and event.at >= self.load.duration:
                raise ValueError(f"events.{number}.at: the load ends at {self.load.duration:g} s")
        return self

    @property
    def measured_slo(self) -> float:
        """The SLO in measured seconds, as figures show it."""
        return self.slo * self.time_scale

    @property
    def workers(self) -> list[str]:
        """Name of every worker, region by region."""
        return [f"{region.name}-{number}" for region, number in self.numbered_workers]

    @property
    def numbered_workers(self) -> list[tuple[Region, int]]:
        """(region, number within the region) of every worker, region by region."""
        return [(region, number) for region in self.regions for number in range(region.workers)]

    @property
    def control_pair(self) -> tuple[str, str] | None:
        """Labels of the A/A pair (original, repetition), or None."""
        return next(((entry.repeat_of, entry.label) for entry in self.entries if entry.repeat_of), None)

    def entry(self, label: str) -> Entry:
        return next(entry for entry in self.entries if entry.label == label)

    def load_of(self, entry: Entry) -> Load:
        return self.load if entry.batch is None else self.load.model_copy(update={"batch": entry.batch})

    def load_in_words(self, entry: Entry) -> str:
        """Description of the entry's load, such as `batch 100` or `180 requests/s, poisson`."""
        return self.load_of(entry).in_words

    def without_keys(self, is_simulated: bool = True) -> list[tuple[str, dict[str, Any]]]:
        """Labels and policies of the entries, if their requests have no keys; those of running balancers may have."""
        has_keys = self.inference is not None or not self.regions or (is_simulated and self.load.keys)
        return [] if has_keys else [(entry.label, entry.policy.model_dump()) for entry in self.entries]

    def balancer_settings(self, entry: Entry) -> dict[str, Any]:
        """Balancer settings for this entry, apart from policy and endpoints."""
        return merged(self.balancer, entry.balancer)

    def mechanisms_of(self, entry: Entry) -> Mechanisms:
        """Balancer settings for this entry with every default filled in."""
        return Mechanisms.model_validate(self.balancer_settings(entry))

    def quickened(self) -> Scenario:
        """Short version: no more requests and blocks than `quick`, and no A/A pair (one block has no noise floor).

        In an open loop, events and bursts are compressed with the duration.
        """
        quick, kept = self.quick, tuple(entry for entry in self.entries if entry.repeat_of is None)
        duration = min(quick.duration, self.load.duration)
        requests = min(quick.requests, self.load.requests)
        load = self.load.shortened(duration).model_copy(update={"requests": requests})
        part = duration / self.load.duration if load.mode == "open" else 1.0
        events = tuple(event.compressed(part) for event in self.events)
        counts = {key: min(getattr(quick, key), getattr(self, key)) for key in ("blocks", "warmup")}
        return self.model_copy(update={**counts, "load": load, "entries": kept, "events": events})


def require_labels(scenario: Scenario) -> None:
    """Raise `ValueError` unless labels are unique and what refers to a label names one."""
    labels = [entry.label for entry in scenario.entries]
    require_unique("entries", labels)
    require_known("baseline", scenario.baseline, labels)
    for entry in scenario.entries:
        require_known("repeat_of", entry.repeat_of or labels[0], labels)


def require_room(scenario: Scenario) -> None:
    """Raise `ValueError` if workers need too much memory: each has slots, and a state at each balancer."""
    workers = sum(region.workers for region in scenario.regions)
    slots = sum(region.workers * region.slots for region in scenario.regions)
    for field, count, what, most in (
        ("regions", workers, "workers", MOST_WORKERS),
        ("regions", slots, "slots", MOST_SLOTS),
        ("balancers", scenario.balancers * workers, "workers at balancers", MOST_STATES),
    ):
        if count > most:
            raise ValueError(f"{field}: {count:,} {what}; there are at most {most:,}")


def require_unique(field: str, names: list[str]) -> None:
    """Raise `ValueError` at the first duplicate name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"{field}: {twice!r} appears twice")


def require_known(field: str, name: str, known: Collection[str]) -> None:
    """Raise `ValueError` unless `name` is in `known`; the message lists some of the known names."""
    if name not in known:
        rest = f" and {len(known) - MAX_LISTED_NAMES} more" if len(known) > MAX_LISTED_NAMES else ""
        listed = ", ".join(islice(known, MAX_LISTED_NAMES))
        raise ValueError(f"{field}: unknown {name!r}; known: {listed}{rest}")
