"""Base of the tables of the configuration, and the types that several of them share.

Defaults must be defined in the tables only, with their units and reasons. A validator covers what a pydantic field
cannot express, with a message of one line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, NewType

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
"""Else pydantic searches the metadata of all installed packages for plug-ins, which takes milliseconds."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Name = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
TOKEN = r"[A-Za-z0-9!#$%&'+.^_`|~-]+"
FieldName = Annotated[str, StringConstraints(pattern=f"^{TOKEN}$", max_length=128)]
FieldNames = Annotated[str, StringConstraints(pattern=rf"^{TOKEN}\*?$", max_length=128)]
"""A name of a field, or the beginning of such names with `*`."""

MOST_WEIGHT = 1e6
EndpointWeight = Annotated[float, Field(gt=0, le=MOST_WEIGHT, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=0, le=127)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
BufferSize = Annotated[int, Field(ge=0, le=1 << 26)]
QueueLength = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]


def _request_path(text: str) -> str:
    if not (text.startswith("/") and text.isascii() and text.isprintable()) or " " in text:
        raise ValueError(f"must begin with / and contain only ASCII without spaces, got {text!r}")
    return text


RequestPath = Annotated[str, AfterValidator(_request_path)]
FileName = NewType("FileName", str)
"""A path of a file as a text; `Path` is another type of such keys."""

UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?(ms|s|m|h|d)")
NUMBER: Final = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[-+]?inf|nan")


def in_seconds(value: Any) -> Any:
    """Return a duration such as "250ms" in seconds, and a number as it is. Anything else is an error."""
    found = DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return float(found[1]) * UNITS[found[2]]
    if isinstance(value, int | float) or (isinstance(value, str) and NUMBER.fullmatch(value)):
        return value
    raise PydanticCustomError(
        "duration", 'must be a number of seconds, or a duration such as "250ms", "2s" or "1m"'
    )


InSeconds: Final = BeforeValidator(in_seconds)
"""Makes a type of numbers one of durations: of numbers of seconds, or of texts with a unit."""

Duration = Annotated[float, InSeconds]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False), InSeconds]


def require_unique(values: Iterable[object], message: str) -> None:
    """Check that no value but None is there twice. Raises ValueError with the message, in which `{at}` is the index of
    the second one and `{value}` the value."""
    seen: set[object] = {None}
    for at, value in enumerate(values):
        if value in seen and value is not None:
            raise ValueError(message.format(at=at, value=value))
        seen.add(value)


class Section(BaseModel):
    """A table of the file: immutable, and unknown keys are errors.

    A default that contradicts a given key is derived from that key (`_derive`); only given keys may contradict.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def _derive(self, **values: Any) -> None:
        """Set those keys that are not given. They do not count as given."""
        for name, value in values.items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value

    def _has(self, *names: str) -> bool:
        """Return whether any of the keys is given."""
        return not self.model_fields_set.isdisjoint(names)
