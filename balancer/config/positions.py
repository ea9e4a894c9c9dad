"""Line numbers of the keys of a TOML document, which `tomllib` does not report. Pure: no I/O."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect
from collections.abc import Callable, Iterator
from typing import Final

Place = tuple[str | int, ...]
"""Path of a value in a document: names of keys, and indexes of lists."""

_BLANK: Final = re.compile(r"[ \t]*").match
_SPACE: Final = re.compile(r"(?>(?:[ \t\n]++|#[^\n]*+)*)").match
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+|\"(?>(?:[^\"\\]|\\.)*)\"|'[^']*'").match
_STRING: Final = re.compile(
    r'(?s)"""(?>(?:[^"\\]|\\.|"{1,2}(?!"))*)"{3,5}'
    r"|'''(?>(?:[^']|'{1,2}(?!'))*)'{3,5}"
    r'|"(?>(?:[^"\\]|\\.)*)"|'
    r"'[^']*'"
).match
_BARE: Final = re.compile(r"[^,\]}\n#]*").match


def lines_of(text: str) -> dict[Place, int]:
    """Return the line of every table, key and list item in a valid TOML document; lines count from 1."""
    return _Scanner(text.replace("\r\n", "\n")).lines


class _Scanner:
    """One pass over the text. It relies on `tomllib` having accepted it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [at for at, letter in enumerate(text) if letter == "\n"]
        self._lists: dict[Place, int] = {}
        self.lines: dict[Place, int] = {}
        self._document()

    def _document(self) -> None:
        table: Place = ()
        while not self._is_at_end():
            if self._takes("["):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Place:
        is_list = self._takes("[")
        line = self._line()
        *parents, name = self._key()
        self._take("]]" if is_list else "]")
        table: Place = ()
        for parent in parents:
            table = self._inside((*table, parent))
            self.lines.setdefault(table, line)
        table = (*table, name)
        if is_list:
            self._lists[table] = self._lists.get(table, -1) + 1
            self.lines.setdefault(table, line)
        table = self._inside(table)
        self.lines[table] = line
        return table

    def _inside(self, table: Place) -> Place:
        """Return the place of the last table of an array of tables, or the table itself."""
        return (*table, self._lists[table]) if table in self._lists else table

    def _pair(self, table: Place) -> None:
        line = self._line()
        place = table
        for name in self._key():
            place = (*place, name)
            self.lines.setdefault(place, line)
        self._take("=")
        self._value(place)

    def _value(self, place: Place) -> None:
        self._skip(_BLANK)
        if self._takes("["):
            for index in self._items("]"):
                self.lines[*place, index] = self._line()
                self._value((*place, index))
        elif self._takes("{"):
            for _ in self._items("}"):
                self._pair(place)
        elif not self._skip(_STRING):
            self._skip(_BARE)

    def _items(self, end: str) -> Iterator[int]:
        """Yield the index of each item up to `end`; the caller reads the item."""
        index = 0
        self._skip(_SPACE)
        while not self._takes(end):
            yield index
            index += 1
            self._skip(_SPACE)
            self._takes(",")
            self._skip(_SPACE)

    def _key(self) -> list[str]:
        """Return the names of a dotted key."""
        names: list[str] = []
        while not names or self._takes("."):
            self._skip(_BLANK)
            found = self._skip(_KEY)
            names.append(_unquoted(found))
            self._skip(_BLANK)
        return names

    def _is_at_end(self) -> bool:
        self._skip(_SPACE)
        return self._at >= len(self._text)

    def _line(self) -> int:
        return bisect(self._ends, self._at - 1) + 1

    def _takes(self, words: str) -> bool:
        is_next = self._text.startswith(words, self._at)
        self._at += len(words) * is_next
        return is_next

    def _take(self, words: str) -> None:
        if not self._takes(words):
            raise ValueError(f"not valid TOML in line {self._line()}")

    def _skip(self, match: Callable[[str, int], re.Match[str] | None]) -> str:
        found = match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]


def _unquoted(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if key.startswith('"'):
        return str(tomllib.loads(f"key = {key}")["key"])
    if not key:
        raise ValueError("not valid TOML")
    return key
