"""Recorded requests for inference: what was asked, how long the answers were, and which prompts begin alike.

Three formats are read, also compressed by gzip: JSON lines of Mooncake (FAST'25), the CSV files of Azure's traces of
LLM inference, and JSON lines with bodies of requests in OpenAI's format, as those of its batches with a time added.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from math import isfinite, log
from pathlib import Path
from stat import S_ISREG
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from experiments.errors import BadInputError
from experiments.recorded.packed import reading, unpacked
from experiments.run_data import Floats
from policies.prompts import BLOCK_BYTES, BYTES_PER_TOKEN, INPUT_TOKENS

MOONCAKE_BLOCK: Final = 512
"""Tokens of a block of Mooncake's traces; equal ids mean equal prefixes up to the end of the block."""

LOG_BLOCK: Final = round(BLOCK_BYTES / BYTES_PER_TOKEN)
"""Tokens of a block of request logs, as the balancer counts them."""

MAX_TOKENS: Final = 10_000_000
"""Maximum tokens of a prompt or an answer."""

AZURE_HEAD: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"

TIMES: Final = ("timestamp", "time", "created_at", "created")
"""Keys of a request log that may hold the time, in this order."""

IN_MILLISECONDS: Final = 1e11
"""Seconds since 1970 from which on a number in a request log is milliseconds."""

SHARED: Final = 0.5
"""Share of requests that stand at the instant of an earlier one, from which on instants count as quantised."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Requests for inference in the order of their instants: tokens of prompt and answer, and the prompts' blocks.

    `blocks` are chained hashes (64 bits) of whole blocks of `block_tokens` tokens; empty where prompts share nothing.
    `sessions` are "" where they are unknown.
    """

    tokens: list[int]
    output: list[int]
    blocks: list[list[int]]
    sessions: list[str]
    block_tokens: int

    def append(self, tokens: int, output: int, blocks: list[int], session: str) -> None:
        self.tokens.append(tokens)
        self.output.append(output)
        self.blocks.append(blocks)
        self.sessions.append(session)


@dataclass(frozen=True, slots=True, eq=False)
class InferenceTrace:
    """Prompts and their ascending instants in seconds from the first.

    `step` is the quantum of the instants in seconds, 0 where they are exact: the requests of an instant came at unknown
    times within `step` after it. `failed` requests of a log are left out: nothing tells how long their answers were, or
    they ask for no answer.
    """

    instants: Floats
    step: float
    prompts: Prompts
    failed: int


class Row(NamedTuple):
    """One request; `at` in seconds of any clock. In a log, `blocks` are those of its text, of `size` bytes."""

    at: float
    tokens: int
    output: int
    blocks: list[int]
    session: str = ""
    size: int = 0


def is_trace(path: str) -> bool:
    """Whether the file begins as one of the formats. Raises `BadInputError` if it cannot be read."""
    return begins_trace(read_bytes(path, 4096).decode("utf-8-sig", "replace"))


def begins_trace(text: str) -> bool:
    return text.lstrip().replace('"', "").startswith(("{", AZURE_HEAD))


@lru_cache(maxsize=4)
def read_trace(path: str) -> InferenceTrace:
    """Read a trace. Raises `BadInputError` naming the line and what is expected there."""
    lines = [(number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    first = lines[0][1].lstrip() if lines else ""
    if not begins_trace(first):
        raise BadInputError(f"load.file: {path}: must be JSON lines, or CSV with the columns {AZURE_HEAD}")
    is_mooncake = '"hash_ids"' in first or '"input_length"' in first
    read = mooncake_row if is_mooncake else log_row if first.startswith("{") else azure_row
    rows, failed = list[Row](), 0
    for number, line in lines[read is azure_row :]:
        try:
            row = read(line)
        except (ValueError, csv.Error) as error:
            raise BadInputError(f"load.file: {path}, line {number}: {error}") from None
        if row is None:
            failed += 1
        else:
            rows.append(row)
    if not rows:
        lacks = " that was answered, with messages or a prompt in `body` or beside the time" * (failed > 0)
        raise BadInputError(f"load.file: {path} holds no request{lacks}")
    if read is log_row:
        count_in_tokens(rows)
    rows.sort(key=lambda row: row.at)  # stable: a conversation's turns of one instant stay in order
    instants = np.array([row.at for row in rows]) - rows[0].at
    instants.flags.writeable = False  # cached and shared by all callers
    prompts = Prompts([], [], [], [], MOONCAKE_BLOCK if is_mooncake else LOG_BLOCK)
    for row in rows:
        prompts.append(row.tokens, row.output, row.blocks, row.session)
    return InferenceTrace(instants, quantum(instants), prompts, failed)


def count_in_tokens(rows: list[Row]) -> None:
    """Replace blocks of text, as a log has them, by blocks of LOG_BLOCK stated tokens, as engines have them.

    A block of text has the same tokens in all prompts that begin alike, or these would share none: those that it has in
    the one whose tokens per byte are the most usual. What another states beyond them is spread over its other bytes.
    """
    usual, ends = median(row.tokens / row.size for row in rows), dict[int, float]()
    for at in sorted(range(len(rows)), key=lambda at: abs(log(rows[at].tokens / rows[at].size / usual))):
        row, blocks, end = rows[at], list[int](), 0.0
        most = min(row.tokens, row.size)  # which bounds the memory
        for number, link in enumerate(row.blocks):
            share = BLOCK_BYTES / (row.size - number * BLOCK_BYTES)
            end = ends.setdefault(link, end + share * max(0.0, most - end))
            blocks += [(link + one) % 2**64 for one in range(len(blocks), round(end / LOG_BLOCK))]
        rows[at] = row._replace(blocks=blocks[: most // LOG_BLOCK])


def quantum(instants: Floats) -> float:
    """Typical gap in seconds between instants that many requests share; 0 where most stand alone."""
    distinct = np.unique(instants)
    is_quantised = len(distinct) > 1 and len(distinct) < (1 - SHARED) * len(instants)
    return float(np.median(np.diff(distinct))) if is_quantised else 0.0


def azure_row(line: str) -> Row:
    """Row of a line such as `2023-11-16 18:17:03.9799600,4808,10`. Raises `ValueError`."""
    words = next(csv.reader([line]))
    if len(words) != 3:
        raise ValueError(f"must have three columns, {AZURE_HEAD}")
    at, tokens, output = (word.strip() for word in words)
    return Row(
        instant_of("TIMESTAMP", at), whole("ContextTokens", tokens), whole("GeneratedTokens", output), []
    )


def json_object(line: str) -> dict[str, Any]:
    """Object of a line of JSON. Raises `ValueError`."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise ValueError("must be a JSON object")
    return said


def mooncake_row(line: str) -> Row:
    """Row of Mooncake's keys timestamp (ms), input_length, output_length and hash_ids. Raises `ValueError`."""
    said = json_object(line)
    at, ids = said.get("timestamp"), said.get("hash_ids")
    if isinstance(at, bool) or not isinstance(at, int | float) or not isfinite(at):
        raise ValueError(f"timestamp: must be a number of milliseconds, got {shown(at)}")
    tokens = whole("input_length", said.get("input_length"))
    count = tokens // MOONCAKE_BLOCK
    if not isinstance(ids, list) or len(ids) < count or not all(type(one) is int for one in ids):
        raise ValueError(f"hash_ids: must be {count} whole numbers, one for each {MOONCAKE_BLOCK} tokens")
    return Row(at / 1e3, tokens, whole("output_length", said.get("output_length")), mixed(ids[:count]))


def log_row(line: str) -> Row | None:
    """Row of a request body with a time: of a batch (`body`), or with the body's keys beside it; None if it failed, or
    has neither messages nor a prompt, as one for embeddings.

    Tokens are those of `usage` where the line has a response, else what the text takes and what the request allows.
    Raises `ValueError`.
    """
    said = json_object(line)
    if has_failed(said):
        return None
    body = said.get("body", said.get("request", said))
    asked = body.get("messages", body.get("prompt")) if isinstance(body, dict) else body
    if asked is None:
        return None
    time = next((key for key in TIMES if said.get(key) is not None), None)
    if time is None:
        raise ValueError(f"must have a time: {', '.join(TIMES)}")
    if not isinstance(body, dict) or not isinstance(asked, list | str) or not asked:
        raise ValueError("must have messages or a prompt, in `body` or beside the time")
    before = [body[key] for key in ("tools", "system") if body.get(key)]
    text = json.dumps([*before, asked], ensure_ascii=False).encode("utf-8", "surrogatepass")
    blocks, link = list[int](), str(body.get("model", "")).encode("utf-8", "surrogatepass")
    for begin in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        link = blake2b(link + text[begin : begin + BLOCK_BYTES], digest_size=8).digest()
        blocks.append(int.from_bytes(link, "big"))
    stated = usage_of(said, "prompt_tokens") or usage_of(said, *INPUT_TOKENS)
    tokens = stated or max(1, round(len(text) / BYTES_PER_TOKEN))
    named = [one for key in ("session_id", "user") if isinstance(one := body.get(key), str | int) and one]
    session = str(named[0])[:200] if named else ""
    at, answered = instant_of(time, said[time]), answered_tokens(said, body)
    return Row(at, tokens, answered, blocks, session, len(text))


def has_failed(said: dict[str, Any]) -> bool:
    """Whether a logged request has a status of 400 or more, or an error in place of a response."""
    response = said.get("response")
    status = said.get("status", said.get("status_code", inner(response, "status_code")))
    return (isinstance(status, int) and status >= 400) or (bool(said.get("error")) and not response)


def usage_of(said: dict[str, Any], *keys: str) -> int | None:
    """Tokens that `usage` of a logged response states, the sum of those by `keys`. Raises `ValueError`."""
    response = said.get("response")
    for place in (said, response, inner(response, "body")):
        found = [(key, tokens) for key in keys if (tokens := inner(inner(place, "usage"), key)) is not None]
        if found:
            return sum(whole(f"usage.{key}", tokens) for key, tokens in found if tokens != 0)
    return None


def answered_tokens(said: dict[str, Any], body: dict[str, Any]) -> int:
    """Tokens of the answer of a logged request. Raises `ValueError`."""
    for key in ("completion_tokens", "output_tokens"):
        tokens = usage_of(said, key)
        if tokens is not None:
            return max(1, tokens)
    for key in ("max_completion_tokens", "max_tokens"):
        if body.get(key) is not None:
            return whole(key, body[key])
    raise ValueError("must have usage.completion_tokens of the response, or max_tokens")


def inner(place: Any, key: str) -> Any:
    """Value of a key of what may be an object."""
    return place.get(key) if isinstance(place, dict) else None


def whole(key: str, value: Any) -> int:
    """Whole number of tokens, at least 1. Raises `ValueError`."""
    is_number = type(value) is int or (isinstance(value, str) and value.isascii() and value.isdigit())
    if not is_number or len(str(value)) > len(str(MAX_TOKENS)) or not 0 <= int(value) <= MAX_TOKENS:
        raise ValueError(f"{key}: must be a whole number up to {MAX_TOKENS}, got {shown(value)}")
    return max(1, int(value))


def instant_of(key: str, value: Any) -> float:
    """Seconds of a number (of seconds, or milliseconds since 1970) or of a text in ISO 8601. Raises `ValueError`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return value / 1e3 if value >= IN_MILLISECONDS else float(value)
    try:
        at = datetime.fromisoformat(str(value))
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{key}: must be seconds or a time in ISO 8601, got {shown(value)}") from None


def shown(value: Any) -> str:
    return "nothing" if value is None else f"{str(value)[:40]!r}"


def mixed(ids: list[int]) -> list[int]:
    """Spread small ids over 64 bits, one to one (SplitMix64, Steele 2014): tables of hashes use some of the bits."""
    word = np.array([one & 0xFFFFFFFFFFFFFFFF for one in ids], dtype=np.uint64)
    word += np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return list(map(int, (word ^ (word >> np.uint64(31))).tolist()))


MAX_FILE_BYTES = 256 << 20
"""Maximum size of a text file in bytes: some ten million requests."""


def read_bytes(path: str, most: int = MAX_FILE_BYTES) -> bytes:
    """Read the first `most` bytes of a regular file, decompressed. Raises `BadInputError`."""
    with reading(f"load.file: {path}"):
        status = Path(path).stat()
        if not S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise BadInputError(f"load.file: {path}: must be a file of at most {MAX_FILE_BYTES >> 20} MiB")
        with Path(path).open("rb") as file:
            return unpacked(file).read(most)


def read_lines(path: str) -> list[str]:
    """Lines of a text file, which end with LF: JSON may have other separators in its texts. Raises `BadInputError`."""
    content = read_bytes(path, MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise BadInputError(f"load.file: {path}: must be a file of at most {MAX_FILE_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise BadInputError(f"load.file: {path} cannot be read: not text") from None
