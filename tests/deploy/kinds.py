"""Check Kubernetes objects against Kubernetes' own types: known keys, their types, and required keys.

The types are those of `lightkube-models`, generated from the API of one version. They have no ranges of values.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

MODULES = {
    "v1": "core_v1",
    "apps/v1": "apps_v1",
    "policy/v1": "policy_v1",
    "networking.k8s.io/v1": "networking_v1",
    "autoscaling/v2": "autoscaling_v2",
    "rbac.authorization.k8s.io/v1": "rbac_v1",
}


class _Schema(types.ModuleType):
    """A substitute for the client that usually comes with the types and has many dependencies."""

    dataclass = staticmethod(dataclasses.dataclass)
    field = staticmethod(dataclasses.field)
    DictMixin = object


for name in ("lightkube.core", "lightkube.core.schema"):
    sys.modules.setdefault(name, _Schema(name))


def problems(document: dict[str, Any]) -> list[str]:
    """The errors of one object; empty if it is valid."""
    module = MODULES.get(document["apiVersion"])
    if module is None:
        return [f"apiVersion: {document['apiVersion']} is not known here"]
    kind = getattr(importlib.import_module(f"lightkube.models.{module}"), document["kind"], None)
    if kind is None:
        return [f"kind: {document['apiVersion']} has no {document['kind']}"]
    return list(differences(document, kind, document["kind"]))


def differences(value: Any, kind: Any, where: str) -> Iterator[str]:
    """How `value` differs from the type `kind`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in inner if option is not type(None)]
        found = [list(differences(value, option, where)) for option in options]
        yield from min(found, key=len)
    elif origin is list and isinstance(value, list):
        for at, item in enumerate(value):
            yield from differences(item, inner[0], f"{where}.{at}")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from differences(item, inner[1], f"{where}.{key}")
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        yield from _members(value, kind, where)
    elif not _is_plain(value, kind):
        yield f"{where}: must be {getattr(kind, '__name__', kind)}, is {value!r}"


def _members(value: dict[str, Any], kind: Any, where: str) -> Iterator[str]:
    hints = _hints(kind)
    fields = {field.metadata.get("json", field.name): field for field in dataclasses.fields(kind)}
    for key, item in value.items():
        if key not in fields:
            yield f"{where}.{key}: is not a key of {kind.__name__}"
        else:
            yield from differences(item, hints[fields[key].name], f"{where}.{key}")
    for name, field in fields.items():
        has_default = not (field.default is field.default_factory is dataclasses.MISSING)
        if name not in value and not has_default:
            yield f"{where}.{name}: is required"


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_plain(value: Any, kind: Any) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(kind, type) and isinstance(value, kind)
