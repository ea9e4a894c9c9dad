"""Raw samples: what goes into a file comes out of it, failures included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.stats.samples import Kind, Run, Samples, load_run, save_run

MakeRun = Callable[..., Run]


def test_a_run_survives_the_file(make_run: MakeRun, tmp_path: Path) -> None:
    """Every column and every fact is read back as it was written."""
    run = make_run([0.1, 0.2, 0.3], kind=[Kind.OK, Kind.RESET, Kind.TIMEOUT], status={"policy": "random"})
    save_run(run, tmp_path / "run.npz")
    again = load_run(tmp_path / "run.npz")
    assert again.facts == run.facts
    for field in fields(Samples):
        np.testing.assert_array_equal(getattr(again.samples, field.name), getattr(run.samples, field.name))


def test_unreached_instants_stay_unreached(make_run: MakeRun, tmp_path: Path) -> None:
    """A request that never got a first byte keeps its row, with nan for the instant."""
    run = make_run([0.1, 0.2], kind=[Kind.OK, Kind.REFUSED])
    run.samples.first_byte_at[1] = np.nan
    save_run(run, tmp_path / "run.npz")
    again = load_run(tmp_path / "run.npz").samples
    assert len(again) == 2
    assert np.isnan(again.first_byte_at[1])


def test_a_run_is_written_whole_or_not_at_all(make_run: MakeRun, tmp_path: Path) -> None:
    """No partial file is left beside a finished one."""
    save_run(make_run([0.1]), tmp_path / "run.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_a_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    """Something that is no run file ends as one line that names it."""
    (tmp_path / "run.npz").write_bytes(b"not a zip")
    with pytest.raises(BadInputError, match=r"run\.npz: not a run file"):
        load_run(tmp_path / "run.npz")


def test_columns_of_unequal_length_are_a_programming_error(make_run: MakeRun) -> None:
    """Samples cannot be made from columns that do not belong together."""
    samples = make_run([0.1, 0.2]).samples
    columns = {field.name: getattr(samples, field.name) for field in fields(samples)}
    with pytest.raises(ValueError, match="differ in length"):
        Samples(**(columns | {"status": np.zeros(1, dtype=np.int64)}))


def test_latency_counts_from_the_due_instant_and_service_time_from_the_sent_one(make_run: MakeRun) -> None:
    """What the generator sent late is in the latency and not in the service time."""
    samples = make_run([0.5], sent_late=0.2).samples
    assert samples.latency[0] == pytest.approx(0.5)
    assert samples.service_time[0] == pytest.approx(0.3)
    assert samples.lag[0] == pytest.approx(0.2)
