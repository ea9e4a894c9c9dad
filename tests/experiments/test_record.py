"""Recordings: reading and merging files, and estimates of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.recorded.recording import Recording, read_recording
from experiments.what_if.fit import fit, in_flight, nearest
from tests.experiments.tapes import Row, Tape, served


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [Row(3.5, 1, key=9, status=503, end=7), Row(1.0, 0, queue=0.25, connect=0.5), Row(2.0, 0xFFFF)]
    tape = Tape(rows, [("a", "emea", 0.1), ("b", "us", 0.2)], dropped=4, about={"keyed": True})
    read = read_recording([tape.write(tmp_path / "r")])
    assert read.instants.tolist() == [0.0, 1.0, 2.5]
    assert read.rows["endpoint"].tolist() == [0, -1, 1]
    assert read.rows["status"].tolist() == [200, 200, 503]
    assert read.rows["key"].tolist() == [7, 7, 9]
    assert read.total[0] == pytest.approx(0.85)
    assert [(e.id, e.region, e.connect) for e in read.endpoints] == [("a", "emea", 0.1), ("b", "us", 0.2)]
    assert (read.regions, read.home_region, read.dropped) == (("emea", "us"), "emea", 4)
    assert (read.policy, read.began) == ({"name": "random"}, 1_700_000_001.0)


def test_an_incomplete_last_block_is_ignored(tmp_path: Path) -> None:
    whole = Tape([Row(at) for at in range(10)]).data
    (tmp_path / "r").write_bytes(whole[:-60])
    assert 5 <= len(read_recording([tmp_path / "r"])) <= 10


def test_keys_are_those_of_the_rows_that_were_placed_by_them(tmp_path: Path) -> None:
    """Not of a process that got `[key]` by a reload a little later."""
    early, late = Tape([Row(0), Row(2)]), Tape([Row(1.5), Row(3, key=9)], about={"keyed": True})
    read = read_recording([early.write(tmp_path / "r.1"), late.write(tmp_path / "r.2")])
    assert read.keys == (None, "7", None, "9")


def test_overlapping_files_are_merged(tmp_path: Path) -> None:
    """Endpoints are equal by their names, whatever their numbers."""
    one = Tape([Row(0), Row(2, 1)], [("a", "emea", 0.1), ("b", "us", 0.0)])
    other = Tape([Row(0.5), Row(2.5, 1)], [("b", "us", 0.3), ("a", "emea", 0.05)], began=one.began + 0.5)
    read = read_recording([one.write(tmp_path / "r.1"), other.write(tmp_path / "r.2")])
    assert read.instants.tolist() == [0, 1, 2, 3]
    assert [read.endpoints[number].id for number in read.rows["endpoint"]] == ["a", "b", "b", "a"]
    assert [endpoint.connect for endpoint in read.endpoints] == [0.05, 0.3]


def test_the_last_of_several_recordings_is_read(tmp_path: Path) -> None:
    first, second = Tape([Row(0), Row(1)]), Tape([Row(0)], began=1_700_001_000.0)
    (tmp_path / "r").write_bytes(first.data + second.data)
    read = read_recording([tmp_path / "r"])
    assert (len(read), read.left_out, read.began) == (1, 1, 1_700_001_000.0)


def test_tunnels_are_left_out(tmp_path: Path) -> None:
    assert len(read_recording([Tape([Row(0), Row(1, end=8, status=101)]).write(tmp_path / "r")])) == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not a recording"),
        (b"0.1\n0.2\n", "is not a recording"),
        (Tape([Row(0)], about={"format": 9}).data, "format 9 is not known"),
        (Tape([Row(0)]).data[:40] + b"x" * 400, "is damaged|holds no request|not a recording"),
        (Tape([]).data, "holds no request"),
        (Tape([Row(0, end=8)]).data, "tunnels alone"),
        (None, "cannot be read"),
    ],
)
def test_a_damaged_or_absent_file_is_reported_in_one_line(
    tmp_path: Path, data: bytes | None, problem: str
) -> None:
    if data is not None:
        (tmp_path / "r").write_bytes(data)
    with pytest.raises(BadInputError, match=problem) as raised:
        read_recording([tmp_path / "r"])
    assert "\n" not in str(raised.value)


# --- fitting


def recorded(rows: list[Row], path: Path, connect: float = 0.0) -> Recording:
    return read_recording([Tape(rows, [("a", "us", connect), ("b", "us", connect)]).write(path)])


@pytest.mark.parametrize("reports", [True, False])
def test_estimates_of_simulated_workers(tmp_path: Path, reports: bool) -> None:
    """Round trip 200 ms; two workers of 20 and 40 ms and two slots, the slower one 80 % busy."""
    rows = served(80, 2, 0.2, [0.02, 0.04], reports=reports)
    (region,) = fit(recorded(rows, tmp_path / "r", connect=0.2))
    assert region.name == "us"
    assert region.rtt == pytest.approx(0.2, rel=0.02)
    assert region.mean == pytest.approx(0.03, rel=0.1)
    assert region.speed == pytest.approx((1.5, 0.75), rel=0.1)
    assert region.slots == 2
    assert region.shape.kind == "uniform" if reports else region.shape.kind
    assert all(worker.is_reported is reports for worker in region.workers)


def test_endpoints_with_few_requests_are_left_out(tmp_path: Path) -> None:
    rows = [Row(n, 0, 0.1, 0.02) for n in range(100)] + [Row(100, 1)]
    (region,) = fit(recorded(rows, tmp_path / "r"))
    assert [worker.endpoint.id for worker in region.workers] == ["a"]


@pytest.mark.parametrize("kind", ["uniform", "exponential", "lognormal", "fixed"])
def test_the_distribution_is_recognised(kind: str) -> None:
    rng = np.random.default_rng(3)
    times = {
        "uniform": rng.uniform(0.5, 1.5, 5000),
        "exponential": rng.exponential(1.0, 5000),
        "lognormal": rng.lognormal(-0.5, 1.0, 5000),
        "fixed": np.ones(5000),
    }[kind]
    shape = nearest(times / times.mean())
    assert shape.kind == kind
    assert shape.distance < 0.03
    assert shape.text(0.02).startswith(f"{kind}:")


def test_requests_in_flight_are_counted() -> None:
    """The second begins within the first, the third when the first has just ended."""
    assert in_flight(np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, 4.0])).tolist() == [0, 1, 1]
