"""Table of the measures of inference: one row per entry, each value with its interval over the runs."""

from __future__ import annotations

import math

import numpy as np

from balancer.syntax.printable import with_digits
from experiments.report.tables import Cell, Table, name_cell, row
from experiments.stats.estimates import paired_student
from experiments.stats.run_summary import counted
from experiments.verdict.summary import Summary

COLUMNS = {
    "tpot_mean": ("TPOT mean ms", 1e3),
    "tpot_p99": ("TPOT p99 ms", 1e3),
    "end_to_end_mean": ("end to end mean s", 1.0),
    "end_to_end_p99": ("end to end p99 s", 1.0),
    "good_rate": ("within limits /s", 1.0),
    "cached_share": ("cached %", 100.0),
    "output_rate": ("output tokens/s", 1.0),
}
"""Measure -> head of its column, and factor of its unit."""


def token_table(summary: Summary) -> Table | None:
    """Measures of inference; None for other scenarios."""
    asked, kept = summary.scenario.inference, counted(summary.runs)
    if asked is None:
        return None
    rows = []
    for entry in summary.entries:
        runs = [run.tokens for run in kept if run.label == entry.label and run.tokens]
        cells = [cell([run[name] * factor for run in runs]) for name, (_, factor) in COLUMNS.items()]
        rows.append(row(name_cell(entry), *cells))
    note = (
        "TPOT is the time per output token after the first. Within limits: requests per second whose first token "
        f"took at most {summary.scenario.slo:g} s, and the others at most {asked.tpot_slo * 1e3:g} ms each. Cached: "
        "share of the prompts' tokens. Mean over runs, with Student's interval at 95 %."
    )
    columns = ("entry", *(head for head, _ in COLUMNS.values()))
    return Table("Tokens", note, columns, tuple(rows))


def cell(values: list[float]) -> Cell:
    """Mean of the runs with its interval, such as `12.3 [12.1–12.5]`; a dash without runs."""
    found = paired_student(np.array(values))
    if not math.isfinite(found.mean):
        return Cell("–", "few")
    mean, low, high = (with_digits(one, 3) for one in (found.mean, found.low, found.high))
    return Cell(mean if math.isnan(found.low) else f"{mean} [{low}–{high}]")
