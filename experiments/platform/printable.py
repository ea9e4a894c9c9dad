"""Validation of external names before they are shown on terminals, in figures and in pages."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from balancer.syntax.printable import one_line as one_line
from balancer.syntax.printable import printable as printable

LONGEST_NAME = 100
"""Maximum length of a name in characters, for which a figure has room; the balancer allows 64 for an endpoint's."""


def checked_line(text: str) -> str:
    """Return `text` if it is one line of printable characters. Raises `ValueError`."""
    if printable(text) != text or "\n" in text:
        raise ValueError(f"must have printable characters only, got {text[:40]!r}")
    return text


def checked_name(text: str) -> str:
    """Return `text` if it is one printable line of at most `LONGEST_NAME` characters. Raises `ValueError`."""
    checked_line(text)
    if len(text) > LONGEST_NAME:
        raise ValueError(f"must have at most {LONGEST_NAME} characters, got {len(text)}")
    return text


PrintableLine = Annotated[str, AfterValidator(checked_line)]
PrintableName = Annotated[str, AfterValidator(checked_name)]
