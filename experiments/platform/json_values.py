"""Conversion of results to JSON, which cannot express numbers that are not finite (RFC 8259 § 6)."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel


def json_value(value: Any, digits: int | None = None) -> Any:
    """Plain JSON values of data classes, models and containers; floats have `digits` significant ones, None: all."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: json_value(getattr(value, name), digits) for name in value.__dataclass_fields__}
    if isinstance(value, BaseModel):
        return json_value(value.model_dump(mode="json"), digits)
    if isinstance(value, dict):
        return {key: json_value(item, digits) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [json_value(item, digits) for item in value]
    if isinstance(value, float):
        number = finite(value)
        return number if digits is None or number is None else float(f"{number:.{digits}g}")
    return value


def finite(value: float) -> float | None:
    """The value, or None (null in JSON and SQL) if it is not finite."""
    return value if math.isfinite(value) else None


def plainly(value: Any) -> Any:
    """Plain JSON values, floats rounded to nine significant digits."""
    return json_value(value, digits=9)
