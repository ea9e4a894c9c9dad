"""Text from elsewhere, made fit to be shown on a terminal. Pure."""

from __future__ import annotations

from typing import Final

KEPT: Final = frozenset("\n\t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}")
"""Not printable for Python, and harmless."""

LONGEST: Final = 2000
"""Characters of a message: some name every policy."""


def printable(text: str) -> str:
    """The text with control characters, direction marks and lone surrogates written out, ESC as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in KEPT else escaped(letter) for letter in text)


def escaped(letter: str) -> str:
    """`\\x1b`, `\\u202e`."""
    return letter.encode("unicode_escape").decode("ascii")


def one_line(message: str) -> str:
    """A message for a person: one line, whatever it holds."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
