"""Verdicts on bounds, in every benchmark the same: met, missed, or not judged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console

from experiments.terminal import STANDING, print_verdict


class Verdict(NamedTuple):
    """Verdict on one bound; `is_met` is None if it cannot be judged."""

    is_met: bool | None
    words: str

    def __str__(self) -> str:
        return f"{STANDING[self.is_met]}: {self.words}"


def print_verdicts(console: Console, verdicts: Iterable[Verdict]) -> None:
    """Print one line per verdict, in the colour of its outcome."""
    for verdict in verdicts:
        print_verdict(console, verdict.is_met, str(verdict))
