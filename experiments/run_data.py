"""Raw samples of one run: a row per request, and the facts of the run beside them.

Nothing is summarised and nothing is dropped. A request that failed, timed out or was still open when the run was
stopped keeps its row; a report is a function of these files alone. All instants are float seconds from the start of the
run; `nan` where an instant was never reached.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from experiments.errors import BadInputError
from experiments.platform.printable import PrintableName

FORMAT = 1

MAX_MEMBER_BYTES = 256 << 20
"""Bytes of a column or of the facts: 32 million requests."""

MALFORMED = (
    *(OSError, BadZipFile, zlib.error, EOFError, KeyError, ValueError, RecursionError, MemoryError),
    *(NotImplementedError, SyntaxError, TypeError, TokenError, UserWarning),
)
"""Exceptions of zipfile and numpy for damaged files: an unknown compression, a header that is not Python or that
states more than there is memory for.
"""

MAX_REQUESTS = 1 << 28
"""Maximum number of requests that the rows of a run stand for: a report has a number for each of them in memory."""

MAX_TOKENS = 1 << 32
"""Maximum number of tokens of a request."""

MAX_INSTANT_S = 1e9
"""Maximum absolute instant of a run in seconds."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

EACH: Ints = np.array(1)
"""Weight of rows that stand for one request each; a file with such rows alone has no column of weights."""

NO_TOKENS: Ints = np.array(0)
"""Tokens of rows that are no requests for inference; a file with such rows alone has no columns of tokens."""

DEFAULTS = {
    "weight": EACH,
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens"), NO_TOKENS),
}
"""Columns that a file may lack, with the value of each row then."""

WorldName = Literal["measured", "simulated"]
"""How a run was executed: on real processes, or in virtual time."""


class Kind(IntEnum):
    """Outcome of a request as the client saw it. The numbers are written to files: append, never renumber."""

    OK = 0
    ERROR_STATUS = 1  # an answer with a status of 400 or more
    REFUSED = 2  # no connection to the balancer, or none that took the request
    TIMEOUT = 3  # no complete answer within the scenario's timeout
    RESET = 4  # the connection broke, or the response was not HTTP
    UNFINISHED = 5  # the run was stopped while the request was open
    ABANDONED = 6  # the client left; known from access logs and balancers only


class Place(BaseModel):
    """A worker and the region to which it belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: PrintableName
    region: PrintableName


def region_numbers(places: Sequence[Place]) -> Ints:
    """Number of the region of each worker, by its number; -1 for the worker -1, which is none."""
    regions = list(dict.fromkeys(place.region for place in places))
    return np.array([*(regions.index(place.region) for place in places), -1], dtype=np.int64)


class RunFacts(BaseModel):
    """Facts of a run other than its requests, written as JSON into the same file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    world: WorldName = Field(default="measured", description="by real processes, or in virtual time")
    label: PrintableName = Field(description="the entry's label, unique in its scenario")
    policy: dict[str, Any] = Field(description="policy name and options as the balancer got them")
    mode: Literal["open", "closed"]
    batch: int | None = Field(default=None, description="requests kept outstanding; closed loop only")
    offered_rate: float | None = Field(default=None, description="requests per second; open loop only")
    achieved_rate: float = Field(default=0.0, description="requests sent per second")
    requests: int = Field(description="requests planned, warm-up excluded")
    warmup_requests: int = Field(default=0, description="requests sent before the run and kept out of it")
    block: int = Field(description="counted from 0")
    order: int = Field(description="position of the run inside its block, counted from 0")
    seed: int = Field(description="seed of the block: equal arrivals and demand for all in it")
    timeout: float = Field(description="seconds after which a request counts as failed")
    time_scale: float = 1.0
    lag_p50: float = Field(default=0.0, description="seconds from scheduled to sent, median")
    lag_p99: float = Field(default=0.0, description="seconds from scheduled to sent, 99th percentile")
    seconds: float | None = Field(
        default=None,
        ge=0,
        le=MAX_INSTANT_S,
        description="of a run whose rows are of a histogram, without instants",
    )
    tpot_slo: float | None = Field(
        default=None, description="seconds per output token that goodput allows; of inference only"
    )
    places: tuple[Place, ...] = Field(description="row order of the `worker` column")
    invalid_reasons: tuple[str, ...] = Field(default=(), description="empty when the run is valid")
    status: dict[str, Any] = Field(default_factory=dict, description="the balancer's /-/status after the run")
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def is_valid(self) -> bool:
        return not self.invalid_reasons

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in order of first appearance."""
        return tuple(dict.fromkeys(place.region for place in self.places))


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One array per column, all of shape (n,), in order of `sequence`.

    `worker` indexes `RunFacts.places` and `region` indexes `RunFacts.regions`; -1 where no worker answered. `attempts`
    is the number of workers that the balancer tried. Only simulated runs have it; it is 0 in measured ones, whose
    retries are counted in `RunFacts.status`. `weight` is the number of requests that a row stands for: 1, but for rows
    of a histogram. Of a request for inference, `output_tokens` is how many tokens came, the first of them at
    `first_byte_at`, and `cached_tokens` of the `prompt_tokens` were cached at the worker; 0 in other rows.
    """

    scheduled_at: Floats
    sent_at: Floats
    first_byte_at: Floats
    ended_at: Floats
    status: Ints
    kind: Ints
    worker: Ints
    region: Ints
    sequence: Ints
    attempts: Ints
    weight: Ints = field(default_factory=lambda: EACH)
    prompt_tokens: Ints = field(default_factory=lambda: NO_TOKENS)
    cached_tokens: Ints = field(default_factory=lambda: NO_TOKENS)
    output_tokens: Ints = field(default_factory=lambda: NO_TOKENS)

    def __post_init__(self) -> None:
        for name, value in DEFAULTS.items():
            if getattr(self, name) is value:
                object.__setattr__(self, name, np.broadcast_to(value, len(self.sequence)))
        lengths = {column.name: len(getattr(self, column.name)) for column in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.sequence)

    def rows(self, chosen: Ints | Flags) -> Samples:
        return type(self)(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})

    @property
    def requests(self) -> int:
        return int(self.weight.sum())

    @property
    def successes(self) -> int:
        return int(self.weight[self.ok].sum())

    def per_request(self, values: Floats, rows: Flags | slice = slice(None)) -> Floats:
        """Values of the chosen rows, each as often as its row stands for requests."""
        weight, chosen = self.weight[rows], values[rows]
        return chosen if (weight == 1).all() else np.repeat(chosen, weight)

    @property
    def ok(self) -> Flags:
        """Mask of the requests that succeeded, shape (n,)."""
        return np.asarray(self.kind == Kind.OK)

    @property
    def latency(self) -> Floats:
        """Seconds from the scheduled instant to the last byte, of inference to the first token, shape (n,)."""
        answered_at = np.where(self.output_tokens > 0, self.first_byte_at, self.ended_at)
        return np.asarray(answered_at - self.scheduled_at)

    @property
    def service_time(self) -> Floats:
        return np.asarray(self.ended_at - self.sent_at)

    @property
    def lag(self) -> Floats:
        """Seconds by which each request was sent late, shape (n,); `nan` where it was never sent."""
        return np.asarray(self.sent_at - self.scheduled_at)

    @property
    def span(self) -> float:
        """Seconds from the first scheduled instant to the last end; 0 without requests."""
        return float(np.nanmax(self.ended_at) - np.min(self.scheduled_at)) if len(self) else 0.0


TYPE_OF_MEMBER = {
    "facts": np.dtype("u1"),
    **dict.fromkeys(("scheduled_at", "sent_at", "first_byte_at", "ended_at"), np.dtype("f8")),
    **dict.fromkeys(
        ("status", "kind", "worker", "region", "sequence", "attempts", *DEFAULTS), np.dtype("i8")
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Samples of a run and its facts."""

    facts: RunFacts
    samples: Samples

    @property
    def span(self) -> float:
        """Seconds of the run: of an open loop at least those for which its requests were offered."""
        if self.facts.seconds is not None:
            return self.facts.seconds
        rate = self.facts.offered_rate
        return max(self.samples.span, self.samples.requests / rate if rate else 0.0)


def save_run(run: Run, path: Path) -> None:
    """Write the run as one npz file atomically, so that a report never reads a half-written run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        write_run(run, file)
    partial.replace(path)


def write_run(run: Run, file: IO[bytes]) -> None:
    """Write the bytes of a run file; the same run gives the same bytes."""
    columns = {column.name: getattr(run.samples, column.name) for column in fields(Samples)}
    for name, value in DEFAULTS.items():
        if (columns[name] == value).all():
            del columns[name]
    facts = np.frombuffer(run.facts.model_dump_json().encode(), dtype=np.uint8)
    np.savez_compressed(file, allow_pickle=False, facts=facts, **columns)


def load_run(path: Path) -> Run:
    """Read a file written by `save_run`. Raises `BadInputError` when it is not a run file."""
    try:
        with ZipFile(path) as archive:  # opened here: a file that is no archive would be read whole
            for info in archive.infolist():
                if info.file_size > MAX_MEMBER_BYTES:
                    raise ValueError(f"{info.filename}: more than {MAX_MEMBER_BYTES:,} bytes")
        with np.load(path, allow_pickle=False) as arrays, warnings.catch_warnings(action="error"):
            facts = RunFacts.model_validate(json.loads(member(arrays, "facts").tobytes()))
            names = [
                column.name
                for column in fields(Samples)
                if column.name not in DEFAULTS or column.name in arrays
            ]
            columns = {name: member(arrays, name) for name in names}
        samples = Samples(**columns)
        check_samples(samples, facts)
        return Run(facts, samples)
    except MALFORMED as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise BadInputError(f"{path}: not a run file: {reason[0][:200]}") from None


def member(arrays: NpzFile, name: str) -> NDArray[Any]:
    """Read one array of the file. Raises `ValueError` if it is of another type or shape, and others of `MALFORMED`."""
    array = arrays[name]
    if not isinstance(array, np.ndarray) or array.dtype != TYPE_OF_MEMBER[name] or array.ndim != 1:
        raise ValueError(f"{name}: no column of the kind that it has in a run")
    return array


def check_samples(samples: Samples, facts: RunFacts) -> None:
    """Check the ranges of the columns. Raises `ValueError`."""
    for name, least, most in (
        ("worker", -1, len(facts.places) - 1),
        ("region", -1, len(facts.regions) - 1),
        ("kind", 0, max(Kind)),
        ("weight", 1, MAX_REQUESTS),
        *((name, 0, MAX_TOKENS) for name in ("prompt_tokens", "cached_tokens", "output_tokens")),
    ):
        column = getattr(samples, name)
        if len(column) and not least <= column.min() <= column.max() <= most:
            raise ValueError(f"{name}: must be from {least} to {most}")
    for name in ("scheduled_at", "sent_at", "first_byte_at", "ended_at"):
        if (np.abs(getattr(samples, name)) > MAX_INSTANT_S).any():
            raise ValueError(f"{name}: must be an instant of the run")
    if samples.requests > MAX_REQUESTS:
        raise ValueError(f"weight: more than {MAX_REQUESTS:,} requests")
    if np.isnan(samples.scheduled_at).any():
        raise ValueError("scheduled_at: must be an instant of the run")
