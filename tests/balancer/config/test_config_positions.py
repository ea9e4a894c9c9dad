"""Line numbers of keys in TOML: every place of the parsed document, in the line where it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.config.effective import toml
from balancer.config.positions import Place, lines_of
from tests.support.example_counts import examples
from tests.support.root import ROOT

FILES = [path for path in sorted(ROOT.rglob("*.toml")) if ".venv" not in path.parts]

SPECIMEN = '''
top = 1 # [not.a.table]
"quoted key" = "a ] } # = \\" [x]"
site."example.org" = true
date = 1979-05-27 07:32:00
text = """
[no.table]
key = ""no"" \\"""
"""
literal = \'\'\'
'x' [y]
\'\'\'
after = [ # comment, ]
  [1, 2], { a = [3], b.c = "}" },
  "last",
]
empty = []
none = {}

[table . "sub"]
key = 1

[[list]]
id = "a"
[[list.inner]]
id = 1
[[list]]
id = "b"
[list.table]
id = "c"
[[list.inner]]
id = 2
[[list.inner]]
id = 3
'''


def places_of(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place of a parsed document."""
    for name, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*place, name)
        if isinstance(child, dict | list):
            yield from places_of(child, (*place, name))


def test_lines_of_every_kind_of_key() -> None:
    rows = SPECIMEN.splitlines()
    lines = lines_of(SPECIMEN)
    assert {*lines} == {*places_of(tomllib.loads(SPECIMEN))}
    for place, begins in {
        ("quoted key",): '"quoted key"',
        ("site", "example.org"): "site.",
        ("after",): "after",
        ("after", 0, 1): "  [1, 2]",
        ("after", 1, "b", "c"): "  [1, 2]",
        ("after", 2): '  "last"',
        ("table", "sub"): "[table",
        ("list", 0, "inner", 0): "[[list.inner]]",
        ("list", 1, "id"): 'id = "b"',
        ("list", 1, "table", "id"): 'id = "c"',
        ("list", 1, "inner", 1, "id"): "id = 3",
    }.items():
        assert rows[lines[place] - 1].startswith(begins), place


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_the_project(path: Path) -> None:
    """The last part of every place is in its line."""
    text = path.read_text(encoding="utf-8")
    lines = lines_of(text)
    assert {*lines} == {*places_of(tomllib.loads(text))}
    rows = text.splitlines()
    for place, line in lines.items():
        assert isinstance(place[-1], int) or place[-1] in rows[line - 1]


def test_windows_line_ends() -> None:
    assert lines_of(SPECIMEN.replace("\n", "\r\n")) == lines_of(SPECIMEN)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=8)
VALUES = st.recursive(
    st.integers(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@examples(50)
@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_any_document(document: dict[str, Any]) -> None:
    """Each key on a line of its own, with any text in keys and values."""
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in document.items())
    lines = lines_of(text)
    assert {*lines} == {*places_of(tomllib.loads(text))}
    assert all(lines[(key,)] == number for number, key in enumerate(document, 1))
