"""Fault and membership events of a scenario: the table `[[events]]`.

An event is frozen data in scenario seconds. `timeline.py` derives the fault state of a worker at an instant from all
events, for live and simulated runs alike.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from experiments.platform.printable import PrintableName
from experiments.scenario.table import Duration, Model, Seconds

Kind = Literal[
    "slow", "pause", "fail", "hang", "reset", "unhealthy", "down", "restart", "rtt", "add", "drain"
]

ALL = "all"
DRAINS = 1.0
"""Default drain time before a restart, in seconds."""

VALUES: dict[Kind, tuple[float, float, float | None]] = {
    "slow": (1e-3, 1e3, None),
    "pause": (1e-3, 60.0, None),
    "fail": (1e-6, 1.0, 1.0),
    "hang": (1e-6, 1.0, 1.0),
    "reset": (1e-6, 1.0, 1.0),
    "rtt": (0.0, 10.0, None),
    "restart": (0.0, 60.0, DRAINS),
}
"""Kind -> least and greatest value, and the default (None: a value is required)."""


class Event(Model):
    """An event that affects workers.

    | kind | for `lasts` seconds | value |
    |---|---|---|
    | slow | service times are multiplied | by this |
    | pause | the worker stops as in a GC pause; repeatedly every `every` seconds | seconds |
    | fail | requests are answered at once with 500, the health check stays green | share of them, 1 |
    | hang | requests get no answer until the event ends | share, 1 |
    | reset | the connections of requests are reset | share, 1 |
    | unhealthy | the health check answers 503 | |
    | down | the process is killed; a new one listens on the same port afterwards | |
    | restart | drained, stopped and started again; back at the end of the event | seconds of draining, 1 |
    | rtt | the round trip to the worker changes | seconds |
    | add | it is an endpoint only from now on, for that long; its process is started before, cold | |
    | drain | it gets no new requests | |
    """

    at: Seconds = Field(description="seconds from the start of the load")
    lasts: Duration | None = Field(default=None, description="seconds; None: to the end of the run")
    target: PrintableName = Field(default=ALL, description="a worker, a region, or all")
    kind: Kind
    value: float | None = Field(default=None, description="its meaning depends on the kind")
    every: Duration | None = Field(
        default=None,
        description="pause: seconds from one to the next, each worker in a phase of its own",
    )
    stagger: Seconds = Field(default=0.0, description="seconds from one worker of the target to the next")

    @model_validator(mode="after")
    def makes_sense(self) -> Self:
        """Check that the value and the other keys fit the kind."""
        self._check_value()
        if self.every is not None and self.kind != "pause":
            raise ValueError("every: only a pause is repeated")
        if self.every is not None and self.every <= self.amount:
            raise ValueError(f"every: must be longer than the pause of {self.amount:g} s")
        if self.kind == "restart" and (self.lasts is None or self.lasts <= self.amount):
            raise ValueError(f"lasts: a restart needs more than the {self.amount:g} s for which it drains")
        if self.kind == "add" and self.at == 0:
            raise ValueError("at: who is added at 0 is there from the start")
        return self

    @property
    def amount(self) -> float:
        """The value, or the default of the kind."""
        default = VALUES[self.kind][2] if self.kind in VALUES else None
        return self.value if self.value is not None else default or 0.0

    def targets(self, worker: str, region: str) -> bool:
        """Whether the worker is a target of the event."""
        return self.target in (ALL, region, worker)

    def compressed(self, part: float) -> Self:
        """The same event in a run that is `part` times as long; length and frequency of pauses stay."""
        lasts = None if self.lasts is None else self.lasts * part
        changes = {"at": self.at * part, "lasts": lasts, "stagger": self.stagger * part}
        if self.kind == "restart":
            changes["value"] = self.amount * part
        return self.model_copy(update=changes)

    def _check_value(self) -> None:
        if self.kind not in VALUES:
            if self.value is not None:
                raise ValueError(f"value: {self.kind!r} has none")
            return
        least, most, default = VALUES[self.kind]
        if self.value is None and default is None:
            raise ValueError(f"value: needed by kind = {self.kind!r}")
        if not least <= self.amount <= most:
            raise ValueError(f"value: must be from {least:g} to {most:g} for kind = {self.kind!r}")
