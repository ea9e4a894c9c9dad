"""The policies that a balancer can change to, with their options, for the live page."""

from __future__ import annotations

import inspect
from typing import Any

from policies import registry
from policies.errors import BrokenPolicy


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
            "type": getattr(parameter.annotation, "__name__", "policy"),
            "default": default_of(parameter),
        }
        for option, parameter in options.items()
    ]


def default_of(parameter: inspect.Parameter) -> Any:
    """Return the default as JSON has it; None for one that is an object, or for none."""
    default = parameter.default
    return default if isinstance(default, str | int | float | bool) else None
