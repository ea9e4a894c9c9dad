"""Frames and calls in any order against the HTTP/2 engine; `tests/support/engine_storm.py` has the invariants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_storm import HEADS, EngineStorm
from tests.support.example_counts import examples
from tests.support.root import ROOT
from tests.support.storm import Event, decode

CORPUS = ROOT / "tests" / "fuzz" / "corpus"
FILES = sorted(path for path in CORPUS.glob("http2-*/*") if path.is_file())

_flags = st.sampled_from((0, 0, 1, 1, 4, 0x28))
_streams = st.sampled_from((15, 15, 15, 15, 15, 1, 3, 5, 0, 2))
_index = st.integers(0, len(HEADS) - 1)


def _events(letters: str, *parts: st.SearchStrategy[int]) -> st.SearchStrategy[Event]:
    return st.tuples(st.sampled_from(letters), st.tuples(*parts).map(bytes))


def _heads(*legal: int) -> st.SearchStrategy[Event]:
    """Mostly legal heads of new streams."""
    index, times = st.sampled_from(legal), st.sampled_from((0, 0, 2, 9, 128, 128, 130))
    known = _events("h", st.just(0), index, st.sampled_from((0, 1)), times)
    return st.one_of(known, known, known, _events("h", _streams, _index, _flags, times))


_data = st.builds(
    lambda flags, stream, size: ("f", bytes((0, flags, stream)) + bytes(size)),
    _flags,
    _streams,
    st.integers(0, 2000),
)
_frames = _events("f", st.integers(0, 10), _flags, _streams, *[st.integers(0, 9)] * 8)
_numbers = _events("w", st.integers(0, 3), _streams, st.integers(0, 7))
_calls = _events("rrrddtaxukgogoql", _streams, st.one_of(st.just(0), _index), st.integers(0, 1))
_others = st.one_of(_events("zeR", _index), st.tuples(st.just("b"), st.binary(max_size=20)), _frames)


def _storms(heads: st.SearchStrategy[Event]) -> st.SearchStrategy[list[Event]]:
    return st.lists(
        st.one_of(heads, heads, _data, _data, _numbers, _calls, _calls, _calls, _others), max_size=25
    )


@examples(100)
@given(_storms(_heads(0, 2, 3, 6, 7, 10)))
def test_unruly_http2_clients(events: list[Event]) -> None:
    EngineStorm("c").run(events)


@examples(100)
@given(_storms(_heads(1, 4, 8, 9, 11, 12)))
def test_unruly_http2_workers(events: list[Event]) -> None:
    EngineStorm("w").run(events)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_corpus_of_fuzzing_http2(path: Path) -> None:
    """The corpus of `make fuzz`: seeds and inputs that once revealed a fault."""
    side = path.parent.name.removeprefix("http2-")[0]
    EngineStorm(side).run(decode(path.read_bytes(), "b"))
