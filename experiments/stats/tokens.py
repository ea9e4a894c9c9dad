"""Measures of inference beyond the time to the first token, which is the latency of these runs."""

from __future__ import annotations

import numpy as np

from experiments.run_data import Run
from experiments.stats.measures import goodput, mean, percentile, time_per_output_token


def token_measures(run: Run, slo: float) -> dict[str, float]:
    """Measures of a run by name; empty if it has no inference.

    Times in seconds, of successes: per output token after the first (TPOT), and end to end. Per second of the run:
    requests within both limits, and tokens of answers. The share (0..1) of the prompts' tokens that were cached.
    """
    rows = run.samples.rows(run.samples.ok & (run.samples.output_tokens > 0))
    if not len(rows):
        return {}
    per_token = time_per_output_token(rows)
    per_token = per_token[np.isfinite(per_token)]
    whole = rows.ended_at - rows.scheduled_at
    return {
        "tpot_mean": mean(per_token),
        "tpot_p99": percentile(per_token, 99),
        "end_to_end_mean": mean(whole),
        "end_to_end_p99": percentile(whole, 99),
        "good_rate": goodput([run], slo) * run.samples.requests / run.span if run.span else 0.0,
        "cached_share": float(rows.cached_tokens.sum() / rows.prompt_tokens.sum()),
        "output_rate": float(rows.output_tokens.sum() / run.span) if run.span else 0.0,
    }
