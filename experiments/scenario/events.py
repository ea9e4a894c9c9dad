"""Fault and membership events of a scenario: the table `[[events]]`.

An event is frozen data in scenario seconds. `timeline.py` derives the fault state of a worker at an instant from all
events, for live and simulated runs alike.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from experiments.platform.printable import PrintableName
from experiments.scenario.event_kinds import KINDS
from experiments.scenario.table import Duration, Model, Seconds

ALL = "all"


def known(kind: str) -> str:
    """Return the kind. Raises `ValueError` if there is none of this name."""
    if kind not in KINDS:
        raise ValueError(f"must be one of {', '.join(KINDS)}, got {kind!r:.60}")
    return kind


class Event(Model):
    """An event that affects workers; `event_kinds.py` has the kinds."""

    at: Seconds = Field(description="seconds from the start of the load")
    lasts: Duration | None = Field(default=None, description="seconds; None: to the end of the run")
    target: PrintableName = Field(default=ALL, description="a worker, a region, or all")
    kind: Annotated[str, AfterValidator(known)]
    value: float | None = Field(default=None, description="its meaning depends on the kind")
    every: Duration | None = Field(
        default=None,
        description="pause: seconds from one to the next, each worker in a phase of its own",
    )
    stagger: Seconds = Field(default=0.0, description="seconds from one worker of the target to the next")

    @model_validator(mode="after")
    def makes_sense(self) -> Self:
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
        allowed = KINDS[self.kind].value
        default = allowed.default if allowed is not None else None
        return self.value if self.value is not None else default or 0.0

    def targets(self, worker: str, region: str) -> bool:
        return self.target in (ALL, region, worker)

    def compressed(self, part: float) -> Self:
        """The same event in a run that is `part` times as long; length and frequency of pauses stay."""
        lasts = None if self.lasts is None else self.lasts * part
        changes = {"at": self.at * part, "lasts": lasts, "stagger": self.stagger * part}
        if self.kind == "restart":
            changes["value"] = self.amount * part
        return self.model_copy(update=changes)

    def _check_value(self) -> None:
        allowed = KINDS[self.kind].value
        if allowed is None:
            if self.value is not None:
                raise ValueError(f"value: {self.kind!r} has none")
            return
        if self.value is None and allowed.default is None:
            raise ValueError(f"value: needed by kind = {self.kind!r}")
        if not allowed.least <= self.amount <= allowed.most:
            raise ValueError(
                f"value: must be from {allowed.least:g} to {allowed.most:g} for kind = {self.kind!r}"
            )
