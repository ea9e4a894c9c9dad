"""Tables of the agreement of simulation and measurement, for HTML, Markdown and the terminal.

A miss is marked in words, not by colour alone; what is not judged gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.fidelity.agreement import BOUNDS, Agreement, FidelityRow, PairComparison, ScenarioResult
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import STANDING
from experiments.report.tables import Cell, Mark, Table, row

MARKS: dict[bool | None, Mark] = {True: "good", False: "bad", None: "few"}
QUANTITIES = tuple(BOUNDS)
EVERY_QUANTITY = (*QUANTITIES, "ranking")


def verdicts(results: Sequence[ScenarioResult], quantity: str) -> list[bool | None]:
    """Verdicts on one quantity, or on the ranking, over all scenarios and entries."""
    if quantity == "ranking":
        return [result.ranking_is_met for result in results]
    agreements = [one for result in results for entry in result.rows for one in entry.agreements]
    return [one.is_met for one in agreements if one.quantity == quantity]


def headline(results: Sequence[ScenarioResult]) -> str:
    """One-sentence summary such as `5 of 30 figures judged are missed`."""
    all_of_them = [met for quantity in EVERY_QUANTITY for met in verdicts(results, quantity)]
    missed, judged = all_of_them.count(False), len(all_of_them) - all_of_them.count(None)
    if not judged:
        return "Nothing can be judged: no measured run is valid"
    if not missed:
        return f"The two worlds agree: {judged} of {len(all_of_them)} figures judged, none missed"
    return f"{missed} of {judged} figures judged are missed"


def overview(results: Sequence[ScenarioResult]) -> Table:
    rows = []
    for quantity in EVERY_QUANTITY:
        found = verdicts(results, quantity)
        bound = f"± {BOUNDS[quantity] * 100:.0f} %" if quantity in BOUNDS else "same order"
        missed = Cell(str(found.count(False)), "bad" if False in found else "")
        rows.append(row(quantity, bound, found.count(True), missed, found.count(None)))
    note = (
        "Share: the worker whose shares differ most, in parts of an even share. Mean and p99 are of all requests, "
        "failures as slow as the deadline, simulated over measured; goodput is the share answered within the SLO. Met "
        "or missed by the interval over eight blocks or more; not judged if it crosses the bound. Ranking: every two "
        "policies that measuring keeps apart beyond noise come in the same order."
    )
    return Table("Agreement", note, ("quantity", "bound", "met", "missed", "not judged"), tuple(rows))


def bounds_of(results: Sequence[ScenarioResult]) -> Iterator[BoundVerdict]:
    """Verdicts for the terminal: every miss, then each quantity over all scenarios."""
    for result in results:
        missed = [(entry, one) for entry in result.rows for one in entry.agreements if one.is_met is False]
        for entry, one in missed:
            found = distance_text(one)
            if not math.isnan(one.simulation_noise):
                found = f"{found}, by chance {chance_text(one)}"
            yield BoundVerdict(f"{result.name}, {entry.label}", bound_text(one.quantity), False, found)
        if result.ranking_is_met is False:
            pairs = "; ".join(map(pair_comparison_text, contradictions(result)))
            yield BoundVerdict(result.name, bound_text("ranking"), False, pairs)
    for quantity in EVERY_QUANTITY:
        verdicts_ = verdicts(results, quantity)
        counts = ", ".join(f"{verdicts_.count(met)} {word}" for met, word in STANDING.items())
        is_met = None if set(verdicts_) == {None} else False not in verdicts_
        yield BoundVerdict("all scenarios", bound_text(quantity), is_met, counts)


def bound_text(quantity: str) -> str:
    """Text such as `p99 within ± 10 %`."""
    return f"{quantity} within ± {100 * BOUNDS[quantity]:.0f} %" if quantity in BOUNDS else "same ranking"


def chance_text(one: Agreement) -> str:
    """Simulation noise such as `± 3.1 %`; a dash if it is unknown."""
    return "–" if math.isnan(one.simulation_noise) else f"± {100 * abs(one.simulation_noise):.1f} %"


def scenario_table(result: ScenarioResult) -> Table:
    """Table of one scenario: every entry with its figures and verdicts."""
    heads = [
        head for name in QUANTITIES for head in (f"{name} measured", "simulated", "distance", "by chance", "")
    ]
    columns = ("policy", "blocks", *heads, "KO % measured", "simulated")
    faults = " ".join(f"{one.label} is not judged: {one.fault}." for one in result.rows if one.fault)
    note = (
        f"{result.question} Shares and goodput in %, latency in ms; in brackets the interval over blocks. By chance: "
        f"how far a single simulation is from the expectation of many that differ by their decisions' draws. {faults}"
    )
    return Table(result.name, note, columns, tuple(map(row_cells, result.rows)))


def row_cells(found: FidelityRow) -> tuple[Cell, ...]:
    """Cells of one entry; padded with dashes if a world has no run of it."""
    cells = [cell for one in found.agreements for cell in agreement_cells(one)]
    padding = [Cell("–", "few")] * (5 * len(QUANTITIES) - len(cells))
    failed = (f"{found.failed_measured:.2f}", f"{found.failed_simulated:.2f}")
    return row(found.label, found.blocks, *cells, *padding, *failed)


def agreement_cells(one: Agreement) -> tuple[Cell, ...]:
    """Measured, simulated, distance with its interval, simulation noise and verdict."""
    factor, mark = (100.0 if one.quantity in ("share", "goodput") else 1e3), MARKS[one.is_met]
    shown: Mark = "few" if one.has_few or one.is_met is None else ""
    values = [Cell(f"{value * factor:.1f}", shown) for value in (one.measured, one.simulated)]
    chance = Cell(chance_text(one), "few")
    return (*values, Cell(distance_text(one), shown), chance, Cell(STANDING[one.is_met], mark))


def distance_text(one: Agreement) -> str:
    """Text such as `+3.1 % [+1, +5]`; without an interval if it is unknown."""
    text = f"{100 * one.distance:+.1f} %"
    interval = one.interval
    if math.isnan(interval.low):
        return text
    return f"{text} [{100 * (interval.low - 1):+.0f}, {100 * (interval.high - 1):+.0f}]"


def ranking_table(results: Sequence[ScenarioResult]) -> Table:
    """Order of the entries by p99 in each world, and every contradiction."""
    rows = tuple(
        row(
            result.name,
            Cell(STANDING[result.ranking_is_met], MARKS[result.ranking_is_met]),
            *(" < ".join(order) or "–" for order in result.orders),
            "; ".join(pair_comparison_text(pair) for pair in contradictions(result)) or "–",
        )
        for result in results
    )
    note = (
        "By p99, the shortest first. Only pairs count of which one stands ahead when measured, by the rules of every "
        "verdict, with Holm's adjustment over all pairs."
    )
    return Table(
        "Ranking", note, ("scenario", "", "measured", "simulated", "contradictions"), rows, prose=True
    )


def contradictions(result: ScenarioResult) -> Iterable[PairComparison]:
    """Pairs that are apart in measurement and in the opposite order in simulation."""
    return (pair for pair in result.pair_comparisons if pair.is_apart and pair.is_same is False)


def pair_comparison_text(pair: PairComparison) -> str:
    """Text such as `random / round-robin: 1.31 measured, 0.98 simulated`."""
    return f"{pair.first} / {pair.second}: {pair.measured.ratio:.2f} measured, {pair.simulated.ratio:.2f} simulated"
