"""The policy in force, as one process sends it to its siblings: its specification and the files as it has read them.

A sibling makes its policy of these contents and not of the disk, so a file that is edited meanwhile cannot give two
processes two versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from balancer.config.schema.policy_spec import PolicySpec
from balancer.control.control_plane import ControlPlane
from policies.loading.source import Source

ORDER_LIMIT: Final = 64 << 20
"""Limit in bytes of a request of a sibling process: ten policies of `LARGEST` bytes each, escaped as JSON."""

Order = dict[str, Any]


def order_of(spec: PolicySpec) -> Order:
    """Return the specification and the contents of its files, for JSON."""
    return {"spec": spec.spec, "files": [source.as_dict() for source in spec.library.sources]}


def reload_order(control_plane: ControlPlane) -> bytes:
    """Return the policy in force with the files of all clusters' policies, each once, as the body of a sibling's
    reload."""
    order = order_of(control_plane.policy)
    for plane in control_plane.named.values():
        order["files"] += [file for file in order_of(plane.policy)["files"] if file not in order["files"]]
    return json.dumps(order, ensure_ascii=False).encode()


def encoded(spec: PolicySpec) -> bytes:
    """Return the order as the body of a request."""
    return json.dumps(order_of(spec), ensure_ascii=False).encode()


def spec_in(order: Mapping[str, Any]) -> PolicySpec:
    """Return the specification of an order; its library has the contents that were sent."""
    spec = PolicySpec.model_validate(order["spec"])
    spec.library.give(files_in(order))
    return spec


def files_in(order: Mapping[str, Any]) -> list[Source]:
    """Return the contents of the files in an order."""
    return [Source.of(document) for document in order["files"]]
