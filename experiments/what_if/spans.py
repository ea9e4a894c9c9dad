"""Spans of a recording under one policy: only within one do the recorded figures belong to a policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.recorded.recording import Recording


def longest_span(recording: Recording) -> tuple[Recording, str]:
    """The part under the policy that was in force for longest without a change, and a sentence about what is left out.

    The sentence is empty if the policy did not change.
    """
    if not recording.changes:
        return recording, ""
    at, whole = recording.instants, float(recording.instants[-1])
    begins = [0.0, *(min(max(0.0, when), whole) for when, _ in recording.changes)]
    ends = [*begins[1:], np.inf]
    policies = [recording.policy, *(policy for _, policy in recording.changes)]
    spans = list(zip(begins, ends, policies, strict=True))
    begin, end, policy = max(spans, key=lambda span: min(span[1], whole) - span[0])
    rows = recording.rows[(at >= begin) & (at < end)].copy()
    if not len(rows):
        return recording, ""
    first = float(rows["at"][0])
    rows["at"] -= first
    count = len(recording.changes)
    words = (
        f"The policy changed {count} time{'s' * (count != 1)} during the recording: only the requests from "
        f"{begin:.0f} s to {min(end, whole):.0f} s are used, all under {policy['name']}."
    )
    return replace(recording, rows=rows, policy=policy, began=recording.began + first, changes=()), words
