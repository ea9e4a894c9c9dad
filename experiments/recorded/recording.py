"""Read recordings of the balancer into one array of requests and the endpoints that served them.

Depends on the documented format only (`docs/live.md`). Only complete blocks are read, so a file may be read while it is
written. Several files, as several processes write them, are one recording where they overlap in time.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from experiments.errors import BadInputError
from experiments.platform.printable import PrintableName
from experiments.run_data import Floats

HEAD = struct.Struct("<cI")
ROW = np.dtype([
    ("at", "<f8"),
    ("queue", "<f4"),
    ("connect", "<f4"),
    ("first_byte", "<f4"),
    ("service", "<f4"),
    ("reported", "<f4"),
    ("key", "<u8"),
    ("bytes_in", "<u4"),
    ("bytes_out", "<u4"),
    ("endpoint", "<u2"),
    ("path", "<u2"),
    ("status", "<u2"),
    ("attempts", "u1"),
    ("end", "u1"),
])  # fmt: skip
WIDE_ROW = np.dtype([(name, "<i8" if name == "endpoint" else ROW[name]) for name in ROW.names or ()])
"""With room for the endpoints of several files, and -1 for none."""
NOWHERE = 0xFFFF
ENDS = (
    *("ok", "error_status", "refused", "timeout", "reset", "abandoned"),
    *("rejected", "unavailable", "tunnel"),
)
OK = ENDS.index("ok")
TUNNEL = ENDS.index("tunnel")

Keys = tuple[str | None, ...]

LARGEST_BLOCK = 1 << 20
"""Largest block in bytes, compressed and decompressed; a balancer writes some 30,000."""

MOST_ROWS = 20_000_000
"""Largest number of requests that is read: some 4 GB while they are sorted."""

MOST_CHANGES = 100_000
"""Largest number of changes of the policy that is read."""

MAX_SPAN_S = 31 * 86_400.0
"""Largest span of a recording, and duration of a phase, in seconds."""

PHASES = ("queue", "connect", "first_byte", "service", "reported")

Seconds = Annotated[float, Field(ge=0, le=MAX_SPAN_S, allow_inf_nan=False)]


class Content(BaseModel):
    """JSON document of a block; unknown keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)


def named_policy(policy: dict[str, Any]) -> dict[str, Any]:
    """Check that a policy has a name. Raises `ValueError`."""
    if not isinstance(policy.get("name"), str):
        raise ValueError("must have a name")
    return policy


NamedPolicy = Annotated[dict[str, Any], AfterValidator(named_policy)]


class Start(Content):
    """Start of a recording; `began` is Unix time."""

    began: float = Field(ge=0, le=1e11, allow_inf_nan=False)
    policy: NamedPolicy
    home_region: PrintableName | None = None
    keyed: bool = False


class PolicyChange(Content, title="change"):
    """Another policy from `at` on, in seconds from the start of the recording."""

    at: Seconds
    policy: NamedPolicy


class Named(Content):
    """An endpoint; `number` is its number in rows."""

    number: int = Field(ge=0, lt=NOWHERE)
    id: PrintableName
    region: PrintableName
    weight: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    connect: Seconds
    priority: int = Field(default=0, ge=0, le=127)
    max_in_flight: int | None = Field(default=None, ge=1)


class RecordingEnd(Content, title="end"):
    """End of a recording."""

    dropped: int = Field(ge=0)


Document = TypeVar("Document", bound=Content)


@dataclass(frozen=True, slots=True)
class RecordedEndpoint:
    """A worker as the balancer knew it. `connect` is the handshake time in seconds, 0 if unknown."""

    id: str
    region: str
    weight: float
    connect: float
    priority: int = 0
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A merged recording. `rows` has the fields of `ROW`, shape (n,), by arrival; `at` in seconds from the first,
    `endpoint` is an index into `endpoints`, -1 for none. `policy` and `home_region` are those at its start;
    `changes` are the later policies, each with its instant in seconds from the first arrival. `dropped` requests
    were not recorded. `keyed`: the policy saw the keys of `rows`, except 0. `left_out` earlier recordings in the same
    files do not overlap with this one.
    """

    rows: NDArray[Any]
    endpoints: tuple[RecordedEndpoint, ...]
    began: float
    policy: dict[str, Any]
    home_region: str | None
    dropped: int
    left_out: int
    changes: tuple[tuple[float, dict[str, Any]], ...] = ()
    keyed: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def instants(self) -> Floats:
        """Arrivals in seconds from the first; ascending."""
        return np.asarray(self.rows["at"], dtype=np.float64)

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in order of first appearance."""
        return tuple(dict.fromkeys(endpoint.region for endpoint in self.endpoints))

    @property
    def keys(self) -> Keys:
        """Key of each request, hashed; empty if the policy saw none, as in other proxies' logs."""
        numbers = self.rows["key"].tolist() if self.keyed else []
        names = {number: f"{number:x}" for number in {*numbers} - {0}}
        return tuple(map(names.get, numbers))

    @property
    def total(self) -> Floats:
        """Seconds from arrival to the last byte, shape (n,); nan without a last byte."""
        rows = self.rows
        return np.asarray(rows["queue"] + np.nan_to_num(rows["connect"]) + rows["service"], dtype=np.float64)


@dataclass(slots=True)
class Segment:
    """Part of a file from one start to the next."""

    about: Start
    endpoints: dict[int, Named] = field(default_factory=dict)
    rows: list[NDArray[Any]] = field(default_factory=list)
    changes: list[PolicyChange] = field(default_factory=list)
    dropped: int = 0

    @property
    def ended(self) -> float:
        """Unix time of the last arrival."""
        return self.about.began + max((float(rows["at"].max()) for rows in self.rows), default=0.0)


def is_recording(path: Path) -> bool:
    """Whether the file begins like a recording."""
    try:
        if not path.is_file():  # opening a pipe may block for ever
            return False
        with path.open("rb") as file:
            beginning = file.read(HEAD.size + 2)
    except OSError:
        return False
    return beginning[:1] == b"S" and beginning[HEAD.size : HEAD.size + 1] == b"\x78"  # RFC 1950 section 2.2


def read_recording(paths: Sequence[Path]) -> Recording:
    """Read the last recording in these files. Raises `BadInputError`."""
    segments: list[Segment] = []
    count = 0
    for path in paths:
        found = segments_of(path, MOST_ROWS - count)
        count += sum(len(rows) for segment in found for rows in segment.rows)
        segments += [segment for segment in found if segment.rows]
    if not segments:
        raise BadInputError(f"{', '.join(map(str, paths))}: holds no request")
    segments.sort(key=lambda segment: segment.about.began)
    group = last_group(segments)
    return joined(group, len(segments) - len(group))


def last_group(segments: list[Segment]) -> list[Segment]:
    """The last segment and those that overlap with it in time; `segments` sorted by start."""
    group, begins = [segments[-1]], segments[-1].about.began
    for segment in reversed(segments[:-1]):
        if segment.ended >= begins:
            group.insert(0, segment)
            begins = min(begins, segment.about.began)
    return group


def joined(segments: Sequence[Segment], left_out: int) -> Recording:
    """Merge the requests of all segments by arrival, without tunnels. Raises `BadInputError` if none is left."""
    endpoints: dict[str, RecordedEndpoint] = {}
    places: dict[str, int] = {}
    parts = []
    for segment in segments:
        numbers = np.full(NOWHERE + 1, -1, dtype=np.int64)
        for number, endpoint in segment.endpoints.items():
            endpoints[endpoint.id] = merged(endpoints.get(endpoint.id), endpoint)
            numbers[number] = places.setdefault(endpoint.id, len(places))
        rows = np.concatenate(segment.rows)
        wide = np.empty(len(rows), WIDE_ROW)
        for name in WIDE_ROW.names or ():
            wide[name] = numbers[rows[name]] if name == "endpoint" else rows[name]
        wide["at"] += segment.about.began
        wide["key"] *= segment.about.keyed
        parts.append(wide[wide["end"] != TUNNEL])
    rows = np.concatenate(parts)
    if not len(rows):
        raise BadInputError("the recording holds tunnels alone")
    rows = rows[np.argsort(rows["at"], kind="stable")]
    began = float(rows["at"][0])
    rows["at"] -= began
    about = segments[-1].about
    dropped = sum(segment.dropped for segment in segments)
    known = tuple(endpoints.values())
    changes, keyed = changes_of(segments[-1], began), bool(rows["key"].any())
    return Recording(rows, known, began, about.policy, about.home_region, dropped, left_out, changes, keyed)


def changes_of(segment: Segment, began: float) -> tuple[tuple[float, dict[str, Any]], ...]:
    """Changes of the policy in order, in seconds from `began` (Unix time); a policy set again is no change."""
    found: list[tuple[float, dict[str, Any]]] = []
    policy = segment.about.policy
    for change in sorted(segment.changes, key=lambda change: change.at):
        if change.policy != policy:
            found.append((segment.about.began + change.at - began, change.policy))
            policy = change.policy
    return tuple(found)


def merged(known: RecordedEndpoint | None, endpoint: Named) -> RecordedEndpoint:
    """Merge two entries of an endpoint; the shortest handshake is nearest to the round trip."""
    seen = [seconds for seconds in (known.connect if known else 0.0, endpoint.connect) if seconds > 0]
    facts = endpoint.model_dump(exclude={"number"})
    return RecordedEndpoint(**facts | {"connect": min(seen, default=0.0)})


def segments_of(path: Path, most: int = MOST_ROWS) -> list[Segment]:
    """All segments of one file, at most `most` requests. Raises `BadInputError`."""
    if not path.is_file() or not is_recording(path):
        reason = "is not a recording of the balancer" if path.is_file() else "cannot be read"
        raise BadInputError(f"{path}: {reason}")
    segments: list[Segment] = []
    try:
        with path.open("rb") as file:
            for kind, payload in blocks(file):
                if kind == b"S":
                    segments.append(Segment(start(path, payload)))
                elif kind == b"R" and payload:
                    rows = checked_rows(np.frombuffer(payload, dtype=ROW))
                    segments[-1].rows.append(rows)
                    most -= len(rows)
                elif kind == b"E":
                    endpoint = document(Named, payload)
                    segments[-1].endpoints[endpoint.number] = endpoint
                elif kind == b"C" and len(segments[-1].changes) < MOST_CHANGES:
                    segments[-1].changes.append(document(PolicyChange, payload))
                elif kind == b"Z":
                    segments[-1].dropped = document(RecordingEnd, payload).dropped
                if most < 0:
                    raise BadInputError(f"{path}: holds more than {MOST_ROWS:,} requests")
    except (OSError, zlib.error, ValueError, IndexError, RecursionError) as error:
        reason = "a block before the start" if isinstance(error, IndexError) else str(error)
        raise BadInputError(f"{path}: is damaged: {reason}") from None
    return segments


def start(path: Path, payload: bytes) -> Start:
    """Parse the start of a known format. Raises `BadInputError` and `ValueError`."""
    about = json.loads(payload)
    if not isinstance(about, dict) or about.get("steelyard") != "recording" or about.get("format") != 1:
        version = about.get("format") if isinstance(about, dict) else None
        raise BadInputError(f"{path}: format {str(version)[:40]} is not known; known: 1")
    return document(Start, payload)


def document(kind: type[Document], payload: bytes) -> Document:
    """Parse the document of a block. Raises `ValueError` with one line."""
    try:
        return kind.model_validate(json.loads(payload))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{error.title.lower()}: {place}: {first['msg']}") from None


def checked_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Check that numbers are in range; a phase that was not reached is nan. Raises `ValueError`."""
    if not ((rows["at"] >= 0) & (rows["at"] <= MAX_SPAN_S)).all():
        raise ValueError("a request at no time")
    if (rows["end"] >= len(ENDS)).any():
        raise ValueError("a request with an end that is not known")
    # Reported by a worker, which must not make the recording unusable.
    if (rows["reported"] > MAX_SPAN_S).any():
        rows = rows.copy()
        rows["reported"][rows["reported"] > MAX_SPAN_S] = np.nan
    for phase in PHASES:
        if ((rows[phase] < 0) | (rows[phase] > MAX_SPAN_S)).any():
            raise ValueError(f"a request with a {phase} that is no time")
    return rows


def blocks(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each complete block. Raises `ValueError` for an oversized block."""
    while len(head := file.read(HEAD.size)) == HEAD.size:
        kind, size = HEAD.unpack(head)
        if size > LARGEST_BLOCK:
            raise ValueError(f"a block of {size} bytes")
        if len(data := file.read(size)) < size:
            return
        unpacking = zlib.decompressobj()
        payload = unpacking.decompress(data, LARGEST_BLOCK)
        if not unpacking.eof:
            raise ValueError("a block that does not end, or is larger than any that is written")
        yield kind, payload
