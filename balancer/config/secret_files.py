"""Warnings about files that hold a secret of the configuration and that other users may read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, SecretStr

from balancer.config.keys import dotted
from balancer.config.loading import LoadedSettings
from balancer.config.positions import Place

READ_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def exposed_secrets(reading: LoadedSettings, file: Path | None) -> Iterator[str]:
    """Yield a line for each secret whose file is readable by its group or by all; `file` is the configuration.

    A platform's own token of a service account is not the operator's to protect and is left out.
    """
    seen = set[tuple[str, Path]]()
    for place, secret in _secrets(reading.settings, ()):
        holder = secret if isinstance(secret, Path) else _configuration(reading, place, file)
        is_inherited = place[:1] == ("clusters",) and (dotted(place[2:]), holder) in seen
        if holder is None or is_inherited:
            continue
        seen.add((dotted(place), holder))
        try:
            mode = holder.stat().st_mode
        except OSError:
            continue  # reported where it is read
        if mode & READ_BY_OTHERS:
            yield f"{dotted(place)}: {holder} can be read by other users (mode {stat.S_IMODE(mode):04o}); chmod 600"


def _configuration(reading: LoadedSettings, place: Place, file: Path | None) -> Path | None:
    """Return the configuration file if the value at `place` is from it, and not from the environment."""
    return file if (reading.source(place) or "").startswith(f"{file}:") else None


def _secrets(section: BaseModel, place: Place) -> Iterator[tuple[Place, SecretStr | Path]]:
    """Yield the places of all secrets that are given, each as a value or as the file that holds it."""
    fields = dict(section)
    if fields.get("token_file") is not None and "token" in fields:
        yield (*place, "token_file"), fields.pop("token_file")
        del fields["token"]
    if "certificate" in fields:
        name = "certificate" if fields.get("key") is None else "key"
        if isinstance(fields[name], Path):
            yield (*place, name), fields[name]
    for name, value in fields.items():
        if isinstance(value, SecretStr) and (name != "url" or "@" in value.get_secret_value()):
            yield (*place, name), value
        for at, each in _parts(value):
            yield from _secrets(each, (*place, name, *at))


def _parts(value: object) -> Iterator[tuple[Place, BaseModel]]:
    if isinstance(value, BaseModel):
        yield (), value
    elif isinstance(value, dict):
        yield from (((name,), each) for name, each in value.items() if isinstance(each, BaseModel))
    elif isinstance(value, tuple):
        yield from (((at,), each) for at, each in enumerate(value) if isinstance(each, BaseModel))
