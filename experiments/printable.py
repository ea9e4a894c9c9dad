"""Names from elsewhere, made fit to be shown: on terminals, in figures and in pages."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

LONGEST_NAME = 100
"""Characters of a name that a figure has room for; the balancer allows 64 for an endpoint's."""

KEPT = frozenset("\n\t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}")
"""Not printable for Python, and harmless."""


def printable(text: str) -> str:
    """The text with control characters, direction marks and lone surrogates written out, ESC as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in KEPT else escaped(letter) for letter in text)


def escaped(letter: str) -> str:
    """`\\x1b`, `\\u202e`."""
    return letter.encode("unicode_escape").decode("ascii")


def checked_line(text: str) -> str:
    """Text on one line. Raises ValueError."""
    if printable(text) != text or "\n" in text:
        raise ValueError(f"must have printable characters only, got {text[:40]!r}")
    return text


def checked_name(text: str) -> str:
    """A name on one line. Raises ValueError."""
    checked_line(text)
    if len(text) > LONGEST_NAME:
        raise ValueError(f"must have at most {LONGEST_NAME} characters, got {len(text)}")
    return text


PrintableLine = Annotated[str, AfterValidator(checked_line)]
PrintableName = Annotated[str, AfterValidator(checked_name)]
