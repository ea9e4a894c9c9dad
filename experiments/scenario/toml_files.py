"""Read user-supplied TOML files with bounds on size, depth and time."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from balancer.config.documents import parsed, read_text
from experiments.errors import BadInputError


def read_toml(source: Traversable, name: str) -> dict[str, Any]:
    """Parsed document of `source`, which messages call `name`. Raises `BadInputError`."""
    try:
        text = read_text(source) if isinstance(source, Path) else source.read_text("utf-8")
        document: dict[str, Any] = parsed(text)
    except OSError as error:
        raise BadInputError(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8, a number with thousands of digits, a NUL in the path
        raise BadInputError(f"{name}: not TOML: {error}") from None
    return document
