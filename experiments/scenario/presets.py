"""Presets: named lists of policies that a scenario compares when it lists no entries of its own.

`preset = "standard"` in a scenario expands to these entries, which `campaign.json` lists one by one. A preset ends with
an A/A control of the baseline.
"""

from __future__ import annotations

from typing import Any

BASELINE = "round-robin"

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
    """Scenario document with `preset` replaced by its entries, which precede those of the file.

    Raises `ValueError` for an unknown preset.
    """
    if not isinstance(raw, dict) or "preset" not in raw:
        return raw
    rest = {key: value for key, value in raw.items() if key not in ("preset", "entries")}
    preset, others = raw["preset"], raw.get("entries", [])
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset: unknown {str(preset)[:40]!r}; known: {', '.join(PRESETS)}")
    if not isinstance(others, list | tuple):
        raise ValueError("entries: must be a list of tables")
    entries = [{"label": name, "policy": name} for name in PRESETS[preset]]
    # the label seeds the policy's random numbers, so another one changes the stored figures
    control = {"label": f"{BASELINE} again", "policy": BASELINE, "repeat_of": BASELINE}
    return {**rest, "entries": [*entries, *others, control]}
