"""Base of the tables of the configuration, and the types that several of them share.

Defaults must be defined in the tables only, with their units and reasons. A validator covers what a pydantic field
cannot express, with a message of one line.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
TOKEN = r"[A-Za-z0-9!#$%&'+.^_`|~-]+"
FieldName = Annotated[str, StringConstraints(pattern=f"^{TOKEN}$", max_length=128)]
FieldNames = Annotated[str, StringConstraints(pattern=rf"^{TOKEN}\*?$", max_length=128)]
"""A name of a field, or the beginning of such names with `*`."""

MOST_WEIGHT = 1e6
EndpointWeight = Annotated[float, Field(gt=0, le=MOST_WEIGHT, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=0, le=127)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Section(BaseModel):
    """A table of the file: immutable, and unknown keys are errors.

    A default that contradicts a given key is derived from that key (`_derive`); only given keys may contradict.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    def _derive(self, **values: Any) -> None:
        """Set those keys that are not given. They do not count as given."""
        for name, value in values.items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value

    def _has(self, *names: str) -> bool:
        """Return whether any of the keys is given."""
        return not self.model_fields_set.isdisjoint(names)
