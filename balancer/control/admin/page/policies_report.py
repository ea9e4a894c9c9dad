"""The policies that a balancer can change to, with their options, for the live page."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from policies import registry
from policies.errors import BrokenPolicy
from policies.policy import PolicyMaker


def policies_report() -> list[dict[str, Any]]:
    """Return name, description and options of each policy; one that cannot be loaded has no options."""
    return [
        {"name": name, "description": description, "options": options_report(name)}
        for name, description in registry.describe().items()
    ]


def options_report(name: str) -> list[dict[str, Any]]:
    """Return name, type and default of each option of a policy; the default is None where there is none."""
    try:
        options = registry.options_of(registry.find(name))
    except BrokenPolicy:
        return []
    return [
        {
            "name": option,
            "type": type_name(parameter.annotation),
            "default": default_of(parameter),
        }
        for option, parameter in options.items()
    ]


def type_name(annotation: Any) -> str:
    """Return the type of an option as the live page shows it, such as "float" or "str or table"."""
    if annotation == PolicyMaker:
        return "policy"
    names = []
    for part in get_args(annotation) if isinstance(annotation, UnionType) else (annotation,):
        if part is not NoneType:
            names.append("table" if get_origin(part) is Mapping else getattr(part, "__name__", "value"))
    return " or ".join(names)


def default_of(parameter: inspect.Parameter) -> Any:
    """Return the default as JSON has it; None for one that is an object, or for none."""
    default = parameter.default
    return default if isinstance(default, str | int | float | bool) else None
