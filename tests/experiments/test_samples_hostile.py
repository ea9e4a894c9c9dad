"""Malformed run files: each is rejected in one line, and none is unpacked beyond its bounds."""

from __future__ import annotations

import io
import json
import tracemalloc
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

from experiments import run_data
from experiments.errors import BadInputError
from experiments.run_data import Samples, load_run, save_run
from tests.support.runs import hand_made


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, bytes]:
    """The members of a good file."""
    save_run(hand_made([0.1, 0.2, 0.3]), tmp_path / "good.npz")
    with ZipFile(tmp_path / "good.npz") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(path: Path, parts: dict[str, bytes]) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def array(values: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, values, allow_pickle=True)
    return data.getvalue()


def refused(path: Path) -> str:
    with pytest.raises(BadInputError, match="not a run file: ") as raised:
        load_run(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), array(np.arange(3)), array(np.array([{}, 1]))],
)
def test_files_that_are_no_archive(tmp_path: Path, data: bytes) -> None:
    """An array by itself, a pickle, an archive without members."""
    (tmp_path / "r.npz").write_bytes(data)
    refused(tmp_path / "r.npz")


def facts(data: bytes) -> Any:
    return np.frombuffer(data, dtype=np.uint8)


COLUMNS: dict[str, Any] = {
    "texts": np.array(["a", "b", "c"]),
    "objects": np.array([{}, 1, None], dtype=object),
    "a matrix": np.zeros((3, 3), dtype=np.int64),
    "a number": np.int64(3),
    "small numbers": np.zeros(3, dtype=np.int8),
    "fewer": np.zeros(2, dtype=np.int64),
    "workers that are none": np.array([0, 1, 10**9]),
    "workers below none": np.array([0, -2, 0]),
}
FACTS: dict[str, Any] = {
    "deep": facts(b"[" * 100_000),
    "a list": facts(b"[]"),
    "no text": facts(b"\xff"),
    "a long number": facts(b'{"seed":' + b"9" * 5000 + b"}"),
}


@pytest.mark.parametrize("case", [*COLUMNS, *FACTS])
def test_malformed_members(tmp_path: Path, parts: dict[str, bytes], case: str) -> None:
    name, content = ("worker", COLUMNS[case]) if case in COLUMNS else ("facts", FACTS[case])
    refused(zipped(tmp_path / "r.npz", parts | {f"{name}.npy": array(content)}))


@pytest.mark.parametrize("name", ["scheduled_at", "sent_at", "first_byte_at", "ended_at"])
@pytest.mark.parametrize("value", [float("inf"), -1e300])
def test_invalid_instants(tmp_path: Path, parts: dict[str, bytes], name: str, value: float) -> None:
    column = array(np.array([0.0, value, 0.0]))
    assert f"{name}: must be an instant" in refused(zipped(tmp_path / "r", parts | {f"{name}.npy": column}))


def test_array_headers_with_a_wrong_size(tmp_path: Path, parts: dict[str, bytes]) -> None:
    """Or with content that Python would have to parse."""
    column = (
        parts["worker.npy"]
        .replace(b"(3,), }", b"(10**12,), }"[:7])
        .replace(b"'shape': (3,)", b"'shape': (9,)")
    )
    refused(zipped(tmp_path / "r", parts | {"worker.npy": column}))


def test_a_decompression_bomb(
    tmp_path: Path, parts: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected by its stated size before it is unpacked."""
    monkeypatch.setattr(run_data, "MAX_MEMBER_BYTES", 32 << 20)
    path = zipped(tmp_path / "r", parts | {"worker.npy": bytes((32 << 20) + 1)})
    tracemalloc.start()
    try:
        assert "worker.npy: more than 33,554,432 bytes" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_names_in_facts_are_printable(tmp_path: Path, parts: dict[str, bytes]) -> None:
    stored = json.loads(np.load(io.BytesIO(parts["facts.npy"])).tobytes())
    stored["places"] = [{"worker": "\x1b]0;x\x07", "region": "r"}]
    refused(zipped(tmp_path / "r.npz", parts | {"facts.npy": array(facts(json.dumps(stored).encode()))}))


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files(tmp_path: Path, seed: int) -> None:
    save_run(hand_made([0.1, 0.2, 0.3]), tmp_path / "good.npz")
    good, rng = (tmp_path / "good.npz").read_bytes(), Random(seed)
    path = tmp_path / "r.npz"
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.choice((1, 1, 4, 200))] = rng.randbytes(rng.choice((0, 1, 1, 4)))
        path.write_bytes(data)
        with suppress(BadInputError):
            assert len(fields(load_run(path).samples)) == len(fields(Samples))
