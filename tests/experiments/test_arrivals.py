"""Arrival processes: rate, position in the run, and reproducibility by the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from experiments.errors import BadInputError
from experiments.generator.arrivals import closed, first_instants, poisson, requests_of
from experiments.recorded.instants import recorded, requests_in
from experiments.scenario.load import Load, Stage

OPEN: dict[str, Any] = {"mode": "open", "rate": 100.0, "duration": 100.0}
STAGES: Any = (
    {"rate": 100.0, "duration": 10.0},
    {"rate": 100.0, "to": 500.0, "duration": 20.0},
    {"rate": 50.0, "duration": 10.0},
)
LOADS = {
    "poisson": Load(**OPEN),
    "constant": Load(**OPEN, arrivals="constant"),
    "burst": Load(**OPEN, arrivals="burst", peak=500.0, start=40.0, lasts=10.0),
    "bursts": Load(**OPEN, arrivals="burst", peak=500.0, start=5.0, lasts=2.0, every=10.0),
    "mmpp": Load(**OPEN, arrivals="mmpp", peak=500.0, lasts=1.0, every=10.0),
    "ramp": Load(**OPEN, arrivals="ramp", peak=300.0),
    "falling": Load(**OPEN, arrivals="ramp", peak=1e-9),
    "stages": Load(mode="open", arrivals="stages", stages=STAGES, duration=40.0),
}


def between(instants: np.ndarray, begin: float, end: float) -> int:
    return int(((instants >= begin) & (instants < end)).sum())


@pytest.mark.parametrize("name", LOADS)
def test_arrivals_are_ascending_within_the_run_and_determined_by_the_seed(name: str) -> None:
    load = LOADS[name]
    instants = first_instants(load, 1, 1.0)
    assert np.all(np.diff(instants) >= 0)
    assert 0 <= instants[0] <= instants[-1] <= load.duration
    assert len(instants) == requests_of(load, 1)
    np.testing.assert_array_equal(instants, first_instants(load, 1, 1.0))
    np.testing.assert_allclose(first_instants(load, 1, 0.5), instants * 0.5)
    if name != "constant":
        assert not np.array_equal(instants[:50], first_instants(load, 2, 1.0)[:50])


def test_poisson_arrivals_are_poisson() -> None:
    """Sorted, within the span, with the exact rate and exponential gaps: their deviation equals their mean."""
    instants = poisson(200.0, 20_000, np.random.default_rng(1))
    gaps = np.diff(instants)
    assert np.all(gaps >= 0)
    assert 0 <= instants[0] <= instants[-1] <= 100.0
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


def test_a_closed_loop_begins_with_its_batch() -> None:
    """Never more than there are requests."""
    assert closed(3, 10).tolist() == [0, 0, 0]
    assert len(closed(30, 10)) == 10


def test_burst_rates() -> None:
    """500 per second for 10 s within 100 per second: 14 000 in all, a fixed number."""
    load = LOADS["burst"]
    instants = first_instants(load, 3, 1.0)
    assert load.planned == len(instants) == 14_000
    assert load.mean_rate == 140.0
    assert between(instants, 40, 50) == pytest.approx(5000, rel=0.03)
    assert between(instants, 0, 40) == pytest.approx(4000, rel=0.05)


def test_bursts_repeat_and_the_last_ends_with_the_run() -> None:
    load = Load(**OPEN, arrivals="burst", peak=500.0, start=9.0, lasts=3.0, every=10.0)
    assert load.bursts[0] == (9.0, 12.0)
    assert load.bursts[-1] == (99.0, 100.0)
    assert load.planned == 10_000 + 400 * 28


def test_a_ramp_is_linear() -> None:
    """From 100 to 300 per second: 200 on average, three eighths of the requests in the first half."""
    instants = first_instants(LOADS["ramp"], 3, 1.0)
    assert len(instants) == 20_000
    assert between(instants, 0, 50) / len(instants) == pytest.approx(0.375, abs=0.01)
    assert between(instants, 0, 10) == pytest.approx(1100, rel=0.1)


def test_a_ramp_to_zero() -> None:
    instants = first_instants(LOADS["falling"], 3, 1.0)
    assert between(instants, 0, 50) / len(instants) == pytest.approx(0.75, abs=0.02)


def test_stages_follow_one_another() -> None:
    """1000, then a ramp with 2000 in its first half and 4000 in its second, then 500."""
    instants = first_instants(LOADS["stages"], 3, 1.0)
    assert LOADS["stages"].planned == len(instants) == 7500
    assert between(instants, 0, 10) == pytest.approx(1000, rel=0.1)
    assert between(instants, 10, 20) == pytest.approx(2000, rel=0.08)
    assert between(instants, 20, 30) == pytest.approx(4000, rel=0.05)
    assert between(instants, 30, 40) == pytest.approx(500, rel=0.15)
    assert (
        LOADS["stages"].in_words == "100/s for 10 s, then 100 to 500/s for 20 s, then 50/s for 10 s, Poisson"
    )


def test_mmpp_has_its_mean_rate_and_overdispersed_counts() -> None:
    """A tenth of the time at 500: 140 per second; counts per second vary far more than those of a Poisson process."""
    load = LOADS["mmpp"].model_copy(update={"duration": 20_000.0})
    instants = first_instants(load, 1, 1.0)
    assert load.planned == 140 * 20_000
    assert len(instants) == pytest.approx(load.planned, rel=0.03)
    counts = np.bincount(instants.astype(int))
    assert counts.var() / counts.mean() > 20


def test_a_recording_is_replayed_from_its_first_instant(tmp_path: Path) -> None:
    """In any order and epoch, with comments, column names and further columns."""
    file = tmp_path / "arrivals.csv"
    file.write_text(
        "instant,key\n1700000002.5,b\n1700000001,a  # the first\n\n1700000011,c\n", encoding="utf-8"
    )
    load = Load(mode="open", arrivals="replay", file=str(file), duration=5.0)
    assert first_instants(load, 1, 2.0).tolist() == [0.0, 3.0]
    assert (load.planned, load.mean_rate, load.recorded_duration) == (2, 0.4, 5.0)
    assert load.keys == ("a", "b", "c")
    longer = load.model_copy(update={"duration": 600.0})
    whole = load.model_copy(update={"duration": longer.recorded_duration})
    assert (whole.duration, whole.planned) == (15.0, 3)
    file.write_text("7\n", encoding="utf-8")
    requests_in.cache_clear()
    assert longer.recorded_duration == 600.0
    assert longer.keys == ()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("instant,key\n1,acme#1\n2,acme#2 # seen\n3# none\n", ("acme#1", "acme#2", None)),
        ("instant,bytes,key\n1,,a\n2,7,\n,,\n", ("a", None)),
        ('"Instant","region, name","Key"\n"1","us, west","b c"\n', ("b c",)),
        ("time key more\n1 a x\n2 b#1\n", ("a", "b#1")),
        ("instant,key\n1\n2,\n", ()),
        ('instant,key\n1,"' + "a" * 140_000 + "\n2,b", None),
    ],
)
def test_key_of_text_is_in_its_column(tmp_path: Path, text: str, keys: tuple[str | None, ...] | None) -> None:
    """Also behind an empty cell; a `#` in it is part of it."""
    file = tmp_path / "arrivals.csv"
    file.write_text(text, encoding="utf-8")
    if keys is None:
        with pytest.raises(BadInputError, match=r"line 2: '1,\"aaa.* is no number of seconds"):
            requests_in(str(file))
    else:
        assert requests_in(str(file))[1] == keys


def test_a_ramp_may_begin_and_end_at_no_request() -> None:
    """A quarter of its requests come in the half of the time in which the rate is low; none in a gap."""
    up, down = Stage(rate=0.0, to=100.0, duration=40.0), Stage(rate=100.0, to=0.0, duration=40.0)
    load = Load(mode="open", arrivals="stages", stages=(up, down), duration=80.0)
    instants = first_instants(load, 3, 1.0)
    assert len(instants) == load.planned == 4000
    assert between(instants, 0, 20) == pytest.approx(500, rel=0.1)
    assert between(instants, 60, 80) == pytest.approx(500, rel=0.1)
    assert np.isfinite(instants).all()


def test_a_run_of_few_requests_has_them_within_its_duration() -> None:
    """Rounded to one: it is due in this second, not somewhere in the ten that one takes on average."""
    load = Load(mode="open", rate=0.1, duration=1.0)
    assert all(first_instants(load, seed, 1.0)[0] <= 1.0 for seed in range(20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no instant"),
        ("1\nsoon\n", "line 2: 'soon' is no number of seconds"),
        ("1\ninf\n", "line 2: 'inf' is no number of seconds"),
        ("0.5;1\n2\n", "line 1: '0.5;1' is no number of seconds"),
    ],
)
def test_an_error_in_a_recording_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        recorded(str(file))


@pytest.mark.parametrize("heading", ["", "at\n", '"at"\n'])
def test_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, heading: str) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(f"{heading}1.5\n2.5\n", encoding="utf-8-sig")
    assert recorded(str(file)).tolist() == [0.0, 1.0]


def test_an_error_names_a_missing_recording() -> None:
    with pytest.raises(BadInputError, match=r"load\.file: nowhere\.csv cannot be read: No such file"):
        recorded("nowhere.csv")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"arrivals": "burst", "peak": 5.0}, "lasts: needed by arrivals = 'burst'"),
        ({"arrivals": "mmpp", "peak": 5.0, "lasts": 1.0}, "every: needed"),
        ({"arrivals": "ramp"}, "peak: needed"),
        ({"arrivals": "replay"}, "file: needed"),
        ({"arrivals": "stages"}, "stages: needed"),
        ({"arrivals": "stages", "stages": STAGES}, "duration: must be that of the stages together, 40 s"),
        ({"arrivals": "mmpp", "peak": 5.0, "lasts": 2.0, "every": 2.0}, "lasts: must be shorter than every"),
    ],
)
def test_arrivals_with_missing_keys_are_rejected(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Load(mode="open", **keys)


def test_a_shorter_run_scales_bursts_and_ramps() -> None:
    load = LOADS["bursts"].shortened(10.0)
    assert (load.duration, load.start, load.lasts, load.every) == (10.0, 0.5, 0.2, 1.0)
    assert load.mean_rate == LOADS["bursts"].mean_rate
    short = LOADS["stages"].shortened(10.0)
    assert [stage.duration for stage in short.stages] == [2.5, 5.0, 2.5]
    assert short.mean_rate == LOADS["stages"].mean_rate
