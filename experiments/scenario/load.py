"""The load of a scenario: number of requests, arrival process, open or closed loop.

A load is frozen data; `experiments.generator.arrivals` computes its arrival instants. Durations are in scenario
seconds, rates in requests per scenario second.
"""

from __future__ import annotations

from math import isclose
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from experiments.recorded.instants import quantum_of, recorded, requests_in
from experiments.recorded.recording import Keys
from experiments.scenario.table import MOST_REQUESTS, MOST_SPELLS, Duration, Model, Rate, Requests, Seconds
from workers.durations import parse_duration

Arrivals = Literal["poisson", "constant", "burst", "mmpp", "ramp", "stages", "replay"]

KEYS: dict[Arrivals, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "poisson": ((), ("rate",)),
    "constant": ((), ("rate",)),
    "burst": (("peak", "lasts"), ("rate", "start", "every")),
    "mmpp": (("peak", "lasts", "every"), ("rate",)),
    "ramp": (("peak",), ("rate",)),
    "stages": (("stages",), ()),
    "replay": (("file",), ()),
}
"""Keys that each kind of arrivals requires, and further ones that it reads."""


RampRate = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class Stage(Model):
    """A part of a load: `rate` for `duration` seconds, or from `rate` linearly to `to`."""

    rate: RampRate = Field(description="requests per second")
    to: RampRate | None = Field(default=None, description="rate at the end of the stage; None: the same")
    duration: Annotated[
        Duration, BeforeValidator(lambda said: parse_duration(said) if isinstance(said, str) else said)
    ] = Field(description="seconds, or a text such as 2m")

    @model_validator(mode="after")
    def has_requests(self) -> Self:
        """Check that the rate is above 0 at one end."""
        if not self.expected:
            raise ValueError("rate: must be above 0 at one end")
        return self

    @property
    def end_rate(self) -> float:
        return self.rate if self.to is None else self.to

    @property
    def expected(self) -> float:
        """Expected number of requests."""
        return self.duration * (self.rate + self.end_rate) / 2

    @property
    def in_words(self) -> str:
        """Description such as `50 to 200/s for 30 s`."""
        return f"{self.rate:g}{'' if self.to is None else f' to {self.to:g}'}/s for {self.duration:g} s"


class Load(Model):
    """How requests are sent: `closed` keeps `batch` outstanding, `open` sends at fixed instants.

    burst: Poisson at `rate`; from `start` on at `peak` for `lasts` seconds, once, or repeatedly every `every` seconds.
    mmpp: Poisson at a rate that switches between `rate` and `peak` at random; a busy period takes `lasts` seconds on
    average and one begins every `every` seconds on average. ramp: Poisson, the rate grows linearly from `rate` to
    `peak`. stages: Poisson, at the rate of one stage after another. replay: the first `duration` seconds of a
    recording; `rate` is ignored.
    """

    mode: Literal["open", "closed"] = "closed"
    batch: int = Field(default=100, ge=1, le=20_000, description="requests outstanding; closed loop")
    requests: Requests = Field(default=1500, description="requests per run; closed loop")
    rate: Rate = Field(default=100.0, description="requests offered per second; open loop")
    duration: Duration = Field(default=30.0, description="seconds of arrivals per run; open loop")
    arrivals: Arrivals = Field(default="poisson", description="open loop")
    peak: Rate | None = Field(default=None, description="requests per second: burst, mmpp, ramp")
    start: Seconds = Field(default=0.0, description="seconds until the first burst")
    lasts: Duration | None = Field(default=None, description="seconds of a burst; mmpp: on average")
    every: Duration | None = Field(
        default=None, description="seconds from burst to burst, mmpp: on average; None: one burst"
    )
    stages: tuple[Stage, ...] = Field(default=(), max_length=1000, description="rates one after another")
    file: str | None = Field(
        default=None, description="replay: a line for each request, its instant in seconds"
    )

    @model_validator(mode="after")
    def says_enough(self) -> Self:
        """Check that the keys needed by the arrivals are present and that bursts end before the next begins."""
        needed, others = KEYS[self.arrivals]
        for key in needed:
            if getattr(self, key) in (None, ()):
                raise ValueError(f"{key}: needed by arrivals = {self.arrivals!r}")
        if self.lasts is not None and self.every is not None and self.lasts >= self.every:
            raise ValueError(f"lasts: must be shorter than every ({self.every:g} s)")
        if self.every is not None and self.duration / self.every > MOST_SPELLS:
            raise ValueError(f"every: more than {MOST_SPELLS:,} times in {self.duration:g} s")
        whole = sum(stage.duration for stage in self.stages)
        if self.arrivals == "stages" and not isclose(self.duration, whole):
            raise ValueError(f"duration: must be that of the stages together, {whole:g} s")
        if self.mode == "open" and "rate" in others and "rate" not in self.model_fields_set:
            raise ValueError("rate: needed by mode = 'open', in requests per second")
        if self.mode == "open" and self.arrivals != "replay" and self.planned > MOST_REQUESTS:
            raise ValueError(f"rate: {self.planned:,} requests; a run has at most {MOST_REQUESTS:,}")
        return self

    @property
    def in_words(self) -> str:
        """Description such as `180 requests/s, poisson`."""
        if self.mode == "closed":
            return f"batch {self.batch}"
        if self.arrivals == "replay":
            return f"replay of {self.file}"
        if self.arrivals == "stages":
            return f"{', then '.join(stage.in_words for stage in self.stages)}, Poisson"
        peak = f" to {self.peak:g}" if self.peak and "peak" in KEYS[self.arrivals][0] else ""
        return f"{self.rate:g}{peak} requests/s, {self.arrivals}"

    @property
    def is_replay(self) -> bool:
        """Whether every run has the requests of the same record."""
        return self.mode == "open" and self.arrivals == "replay"

    @property
    def keys(self) -> Keys:
        """Keys of the requests, if they replay a recording that has some. Raises `BadInputError`."""
        return requests_in(self.file or "")[1] if self.is_replay else ()

    @property
    def unread(self) -> dict[str, str]:
        """Keys that have other values than their defaults and are not read, with what the load is instead."""
        is_closed, default = self.mode == "closed", Load()
        needed, others = KEYS[self.arrivals]
        read = ("batch", "requests") if is_closed else ("duration", "arrivals", *needed, *others)
        keys = [key for key in type(self).model_fields if key != "mode" and key not in read]
        by_mode = keys if is_closed else ("batch", "requests")
        return {
            key: f"mode = {self.mode!r}" if key in by_mode else f"arrivals = {self.arrivals!r}"
            for key in keys
            if getattr(self, key) != getattr(default, key)
        }

    @property
    def mean_rate(self) -> float:
        """Mean requests per second over the run; for mmpp the expected value. Reads the file of a replay."""
        return self.planned / self.duration

    @property
    def recorded_duration(self) -> float:
        """`duration` of a replay, which ends with its record: one mean interval after the last request."""
        instants = recorded(self.file or "")
        last = float(instants[-1])
        end = last + max(quantum_of(self.file or ""), last / max(1, len(instants) - 1))
        return min(self.duration, end or self.duration)

    @property
    def planned(self) -> int:
        """Number of requests per run, equal for all runs; for mmpp the expected number, as busy periods depend on the
        seed.

        Raises `BadInputError` when the file of a replay cannot be read.
        """
        if self.mode == "closed":
            return self.requests
        if self.arrivals == "replay":
            return int((recorded(self.file or "") < self.duration).sum())
        if self.arrivals == "stages":
            return max(1, round(sum(stage.expected for stage in self.stages)))
        return max(1, round(self.rate * self.duration + self._extra))

    @property
    def _extra(self) -> float:
        """Expected number of requests beyond those at `rate`."""
        above = (self.peak or self.rate) - self.rate
        if self.arrivals == "ramp":
            return above * self.duration / 2
        if self.arrivals == "mmpp":
            return above * self.duration * (self.lasts or 0.0) / (self.every or 1.0)
        return above * sum(end - begin for begin, end in self.bursts) if self.arrivals == "burst" else 0.0

    @property
    def bursts(self) -> tuple[tuple[float, float], ...]:
        """Begin and end of every burst in seconds, cut off at the end of the run."""
        lasts, every = self.lasts or 0.0, self.every or self.duration
        count = max(0, -int(-(self.duration - self.start) // every)) if self.every else 1
        begins = [self.start + number * every for number in range(count)]
        return tuple((begin, min(begin + lasts, self.duration)) for begin in begins if begin < self.duration)

    def shortened(self, duration: float) -> Self:
        """The same load compressed to `duration` seconds, bursts and stages included."""
        part = duration / self.duration
        spell = {
            key: value * part
            for key in ("start", "lasts", "every")
            if (value := getattr(self, key)) is not None
        }
        stages = tuple(stage.model_copy(update={"duration": stage.duration * part}) for stage in self.stages)
        return self.model_copy(update={"duration": duration, "stages": stages, **spell})
