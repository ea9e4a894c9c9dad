"""Traffic of `experiments load` from a TOML file: weighted requests with fields and bodies, and stages of the rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from balancer.tools.probe.target import BadTarget, target_of
from experiments.errors import BadInputError
from experiments.scenario.files import first_complaint, read_toml
from experiments.scenario.load import Stage
from experiments.scenario.service import Method
from experiments.scenario.table import Model
from experiments.service.target import Message, bytes_of, checked_body, parse_body, parse_field

STAGE_FORM = "RATE:TIME or FROM-TO:TIME, above 0 at one end, separated by commas, such as 50:30s,0-200:1m"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is sent, and at which rates if not at one."""

    messages: tuple[Message, ...]
    stages: tuple[Stage, ...] = ()

    @property
    def described(self) -> dict[str, Any]:
        """The requests as `Service` holds them: without bodies and values of fields."""
        whole = sum(message.weight for message in self.messages)
        kinds = [
            {
                "method": one.method,
                "path": one.path,
                "fields": [name for name, _ in one.fields],
                "body": len(one.body),
            }
            for one in self.messages
        ]
        if len(kinds) == 1:
            return kinds[0]
        shares = [message.weight / whole for message in self.messages]
        return {"requests": [{**kind, "share": share} for kind, share in zip(kinds, shares, strict=True)]}

    def load(self, rate: float, duration: float, arrivals: str) -> dict[str, Any]:
        """The load: the stages, or as given."""
        if not self.stages:
            return {"rate": rate, "duration": duration, "arrivals": arrivals}
        return {
            "rate": self.stages[0].expected / self.stages[0].duration,  # of the warm-up
            "duration": sum(stage.duration for stage in self.stages),
            "arrivals": "stages",
            "stages": [stage.model_dump() for stage in self.stages],
        }


class RequestTable(Model):
    """`[[requests]]`: one of the requests, which is sent in proportion to its weight."""

    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    method: Method | None = None
    path: str | None = None
    fields: dict[str, str] = Field(default_factory=dict)
    body: str | None = None
    body_file: str | None = None

    @model_validator(mode="after")
    def has_one_body(self) -> RequestTable:
        """Check that the body is stated once."""
        if self.body is not None and self.body_file is not None:
            raise ValueError("body_file: not beside body")
        return self


class TrafficFile(Model):
    """The whole file."""

    requests: tuple[RequestTable, ...] = Field(default=(), max_length=1000)
    stages: tuple[Stage, ...] = Field(default=(), max_length=1000)


def traffic_of(
    method: str | None,
    fields: tuple[tuple[str, str], ...],
    data: str | None,
    stages: str | None,
    file: str | None,
) -> Traffic:
    """The traffic of the options. Raises `BadInputError` that names the option, or the key in the file."""
    found = Traffic(()) if file is None else read_traffic(file, fields)
    if stages is not None and found.stages:
        raise BadInputError(f"--stages: not beside those of {file}")
    if found.messages and (method, data) != (None, None):
        raise BadInputError(f"--method, --data: not beside the requests of {file}")
    usual = Message(method or ("GET" if data is None else "POST"), fields, parse_body(data))
    given = found.stages if stages is None else tuple(stage_in(part.strip()) for part in stages.split(","))
    return Traffic(found.messages or (usual,), given)


def read_traffic(path: str, fields: tuple[tuple[str, str], ...]) -> Traffic:
    """Requests and stages of a file; every request has `fields` too. Raises `BadInputError` that names the key."""
    try:
        traffic = TrafficFile.model_validate(read_toml(Path(path), path))
    except ValidationError as error:
        raise BadInputError(f"{path}: {first_complaint(error, TrafficFile)}") from None
    if not traffic.requests and not traffic.stages:
        raise BadInputError(f"{path}: must have [[requests]], [[stages]] or both")
    messages = [
        message_of(table, f"{path}: requests.{number}", Path(path).parent, fields)
        for number, table in enumerate(traffic.requests)
    ]
    return Traffic(tuple(messages), traffic.stages)


def message_of(table: RequestTable, where: str, folder: Path, fields: Sequence[tuple[str, str]]) -> Message:
    """The request of a table. Raises `BadInputError`."""
    if table.path is not None:
        try:
            target_of(f"http://any{table.path}" if table.path.startswith("/") else "")
        except BadTarget:
            raise BadInputError(
                f"{where}.path: must begin with / and be ASCII, escaped where needed, got {table.path[:60]!r}"
            ) from None
    own = [parse_field(f"{name}: {value}", f"{where}.fields") for name, value in table.fields.items()]
    body = (table.body or "").encode()
    if table.body_file is not None:
        body = bytes_of(str(folder / table.body_file), f"{where}.body_file")
    has_body = table.body is not None or table.body_file is not None
    return Message(
        table.method or ("POST" if has_body else "GET"),
        (*fields, *own),
        checked_body(body, f"{where}.body"),
        table.path,
        table.weight,
    )


def stage_in(text: str) -> Stage:
    """A stage such as `50:30s` or `50-200:1m`. Raises `BadInputError`."""
    rates, _, time = text.partition(":")
    begin, dash, end = rates.partition("-")
    try:
        return Stage.model_validate({"rate": begin, "to": end if dash else None, "duration": time})
    except ValueError:  # pydantic's errors are of this class
        raise BadInputError(f"--stages: must be {STAGE_FORM}; got {text[:60]!r}") from None
