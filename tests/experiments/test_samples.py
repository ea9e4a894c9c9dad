"""Run files: columns and facts are read as they were written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.run_data import Kind, Run, Samples, load_run, save_run
from experiments.stats.measures import deadline_mapped, errors_by_kind, goodput, statistics_row
from tests.support.runs import hand_made


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Instants that were never reached are nan, and no partial file is left."""
    run = hand_made([0.1, 0.2, 0.3], kind=[Kind.OK, Kind.RESET, Kind.TIMEOUT], status={"policy": "random"})
    run.samples.first_byte_at[1] = np.nan
    save_run(run, tmp_path / "run.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]
    again = load_run(tmp_path / "run.npz")
    assert again.facts == run.facts
    for field in fields(Samples):
        np.testing.assert_array_equal(getattr(again.samples, field.name), getattr(run.samples, field.name))


def test_columns_of_unequal_length_are_a_programming_error() -> None:
    samples = hand_made([0.1, 0.2]).samples
    columns = {field.name: getattr(samples, field.name) for field in fields(samples)}
    with pytest.raises(ValueError, match="differ in length"):
        Samples(**(columns | {"status": np.zeros(1, dtype=np.int64)}))


def test_latency_counts_from_due_and_service_time_from_sent() -> None:
    """A late generator adds to the latency and not to the service time."""
    samples = hand_made([0.5], sent_late=0.2).samples
    assert samples.latency[0] == pytest.approx(0.5)
    assert samples.service_time[0] == pytest.approx(0.3)
    assert samples.lag[0] == pytest.approx(0.2)


def test_a_row_may_stand_for_several_requests(tmp_path: Path) -> None:
    """Every measure counts it as often; a file has the column only then, and one of too many requests is refused."""
    plain, file = (
        hand_made([0.1, 0.2, 0.2, 0.5], kind=[Kind.OK, Kind.OK, Kind.OK, Kind.RESET]),
        tmp_path / "run.npz",
    )
    save_run(plain, file)
    with np.load(file) as columns:
        assert "weight" not in columns
    kept = {field.name: getattr(plain.samples, field.name)[[0, 1, 3]] for field in fields(Samples)}
    kept["weight"] = np.array([1, 2, 1])
    save_run(Run(plain.facts, Samples(**kept)), file)
    run = load_run(file)
    assert (len(run.samples), run.samples.requests, run.samples.successes) == (3, 4, 3)
    np.testing.assert_allclose(np.sort(deadline_mapped(run)), np.sort(deadline_mapped(plain)))
    assert statistics_row([run]).mean == pytest.approx(statistics_row([plain]).mean)
    assert (goodput([run], 0.15), errors_by_kind([run])) == (goodput([plain], 0.15), errors_by_kind([plain]))
    save_run(Run(plain.facts, Samples(**(kept | {"weight": np.array([1, 1 << 28, 1])}))), file)
    with pytest.raises(BadInputError, match="weight: more than 268,435,456 requests"):
        load_run(file)
