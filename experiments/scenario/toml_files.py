"""Read user-supplied TOML files with bounds on size and depth."""

from __future__ import annotations

import tomllib
from importlib.resources.abc import Traversable
from typing import Any

from balancer.config.documents import TOO_DEEP, check_limits
from experiments.errors import BadInputError

LARGEST = 1 << 20
"""Maximum size in bytes. The largest packaged file has a few thousand."""


def read_toml(source: Traversable, name: str) -> dict[str, Any]:
    """Parsed document of `source`, which messages call `name`. Raises `BadInputError`."""
    try:
        with source.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadInputError(f"{name}: is longer than {LARGEST >> 10} KiB")
        document = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise BadInputError(f"{name}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise BadInputError(f"{name}: {TOO_DEEP}") from None
    except ValueError as error:  # invalid TOML or UTF-8, a number with thousands of digits, a NUL in the path
        raise BadInputError(f"{name}: not TOML: {error}") from None
    try:
        check_limits(document)
    except ValueError as error:
        raise BadInputError(f"{name}: {error}") from None
    return document
