"""Paths of files in a configuration file are relative to it. Pure: no I/O."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from balancer.config.keys import Table, is_mapping, parts_of, table_of
from balancer.config.schema.section import FileName

PATHS: Final = (Path, FileName)
"""Types of keys that name a file."""


def is_file_path(annotation: Any) -> bool:
    """Return whether values of the annotation name a file."""
    return any(part in PATHS for part in parts_of(annotation))


def with_located_files(value: Any, annotation: Any, folder: str) -> Any:
    """Return a value of a document with the relative paths in it made absolute, relative to `folder`."""
    table = table_of(annotation)
    if isinstance(value, str) and value and is_file_path(annotation):
        return os.path.join(folder, value)
    if isinstance(value, list):
        return [with_located_files(each, annotation, folder) for each in value]
    if not isinstance(value, dict) or table is None:
        return value
    return {
        name: with_located_files(each, _inner(annotation, table, name), folder)
        for name, each in value.items()
    }


def _inner(annotation: Any, table: Table, name: str) -> Any:
    """Return the annotation of a key of a table, or of a table with a name that is free to choose."""
    if is_mapping(annotation):
        return table
    return table.model_fields[name].annotation if name in table.model_fields else None
