"""Line-ups: the policies that a scenario lets compete when it names none of its own, each in one place.

Rule of this file: `lineup = "standard"` in a scenario is short for these entries, which stand in `campaign.json` one by
one. A line-up ends with an A/A twin of the baseline.
"""

from __future__ import annotations

from typing import Any

TWIN = "round-robin"

STANDARD = (
    "random",
    "round-robin",
    "least-in-flight",
    "latency-weighted",
    "least-time",
    "peak-ewma",
    "reported-load",
    "c3",
    "prequal",
    "join-idle-queue",
    "steelyard",
)
REGIONS = (
    "random",
    "round-robin",
    "region-round-robin",
    "region-aware",
    "least-in-flight",
    "latency-weighted",
    "peak-ewma",
    "c3",
    "prequal",
    "steelyard",
)
PRESETS = {"standard": STANDARD, "regions": REGIONS}


def expanded(raw: Any) -> Any:
    """A scenario as it was read, `lineup` replaced by its entries, before those of the file's own.

    Raises ValueError for a line-up that nobody knows.
    """
    if not isinstance(raw, dict) or "lineup" not in raw:
        return raw
    rest = {key: value for key, value in raw.items() if key not in ("lineup", "entries")}
    lineup, others = raw["lineup"], raw.get("entries", [])
    if not isinstance(lineup, str) or lineup not in PRESETS:
        raise ValueError(f"lineup: unknown {str(lineup)[:40]!r}; known: {', '.join(PRESETS)}")
    if not isinstance(others, list | tuple):
        raise ValueError("entries: must be a list of tables")
    entries = [{"label": name, "policy": name} for name in PRESETS[lineup]]
    twin = {"label": f"{TWIN} again", "policy": TWIN, "twin_of": TWIN}
    return {**rest, "entries": [*entries, *others, twin]}
