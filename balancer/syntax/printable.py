"""Text for a terminal: untrusted text escaped, and numbers. Pure."""

from __future__ import annotations

from typing import Final

KEPT: Final = frozenset("\n\t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}")
"""Characters that Python does not count as printable, but that are harmless."""

MAX_CHARACTERS: Final = 2000
"""Maximum characters of a message: some list every policy."""


def printable(text: str) -> str:
    """Return the text with control characters, direction marks and lone surrogates escaped, ESC as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in KEPT else escaped(letter) for letter in text)


def escaped(letter: str) -> str:
    """Return a character's escape sequence, such as `\\x1b` or `\\u202e`."""
    return letter.encode("unicode_escape").decode("ascii")


def one_line(message: str) -> str:
    """Return a message as one printable line of bounded length."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}…"


def with_digits(number: float, digits: int) -> str:
    """Format a number with `digits` digits that count, a larger one as a whole number: never as 1.23e+03."""
    return f"{number:.0f}" if abs(number) >= 10 ** (digits - 1) else f"{number:.{digits}g}"
