"""Labels of entries: they stand in tables, file names, CSV and lists separated by commas, so none contains a comma."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.loading.reference import label_of

LONGEST_LABEL = 40


def policy_label(policy: Mapping[str, Any], taken: Mapping[str, Mapping[str, Any]]) -> str:
    """Label of a policy: its name, and its options if any, such as `least-in-flight (choices=3 tie=rate)`.

    A label that another policy in `taken` has gets a number. The same policy gets its own label again.
    """
    options = " ".join(f"{key}={plain(value)}" for key, value in policy.items() if key != "name")
    name = plain(label_of(str(policy["name"])))
    whole = f"{name} ({options})" if options else name
    label, number = shortened(whole), 1
    while label in taken and taken[label] != policy:
        number += 1
        label = shortened(whole, f" {number}")
    return label


def plain(value: object) -> str:
    """A value as text without commas."""
    return str(value).replace(", ", " ").replace(",", " ")


def shortened(label: str, end: str = "") -> str:
    """The label with `end`, with an ellipsis where it is too long."""
    room = LONGEST_LABEL - len(end)
    return (label if len(label) <= room else f"{label[: room - 1]}…") + end
