"""`python -m benchmarks certificate`: compare the simulator with closed forms of queueing theory."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.harness.session import Session
from benchmarks.harness.verdicts import Verdict
from benchmarks.simulator.cases import Case, cases

SEED = 1


def certify(session: Session, samples: float, chosen: Sequence[Case] | None = None) -> int:
    """Simulate every case with `samples` times the usual number and present; returns the exit code."""
    verdicts: list[Verdict] = []
    session.say(f"Simulated beside closed forms, seed {SEED}, {samples:g} times the usual samples.")
    chosen = cases() if chosen is None else chosen
    with session.interruptible(len(chosen)):
        for case in chosen:
            began_at = time.process_time()
            verdicts.append(verdict_on(case, samples))
            session.run_ended(case.name, f"{time.process_time() - began_at:.1f} s")
    within = sum(verdict.is_met is True for verdict in verdicts)
    return session.conclude(verdicts, doubt=f"{within} of {len(verdicts)} within their bounds.")


def verdict_on(case: Case, samples: float) -> Verdict:
    """Simulate one case and judge it."""
    count = max(1, round(case.samples * samples))
    simulated = case.simulated(count, SEED)
    error = case.error(simulated)
    found = f"{simulated:.4f} simulated, {case.theory:.4f} in theory, {error:+.2%}, {count:,} requests"
    return Verdict(case.name, f"within {case.bound:.0%} of theory", abs(error) <= case.bound, found)
