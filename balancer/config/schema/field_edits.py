"""Fields that are set, added and removed: `[headers.request]`, `[headers.response]` and those of a route."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.config.schema.section import FieldName, FieldNames, Section
from balancer.syntax.field_names import in_cgi

EditedValue = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=4096)]

VARIABLES: Final = ("client", "scheme", "host", "tls", "cluster", "endpoint", "request_id")
"""Names of what a value may have in braces."""

_PART: Final = re.compile(r"(\{\{|\}\}|[^{}]+)|\{([^{}]*)\}|.")

_OF_CONNECTIONS: Final = (
    *("connection", "content-length", "content-type", "keep-alive", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade"),
)


def meant_by(name: str, fields: Iterable[str]) -> str | None:
    """Return the field out of `fields` that `name`, which may be a prefix with `*`, stands for as CGI reads it."""
    plain = in_cgi(name.removesuffix("*").lower().encode()).decode()
    for field in fields:
        if field == plain or (name.endswith("*") and field.startswith(plain)):
            return field
    return None


class FieldEdits(Section):
    """Fields that are set, added and removed in a head: first removed, then set, then added."""

    OWNED: ClassVar[tuple[str, ...]] = _OF_CONNECTIONS

    set: dict[FieldName, EditedValue] = Field(
        default={},
        max_length=100,
        description="table | fields with their values, in place of all others of the name; see [Fields](#fields)",
    )
    add: dict[FieldName, EditedValue] = Field(
        default={},
        max_length=100,
        description="table | fields with their values, beside others of the name",
    )
    remove: tuple[FieldNames, ...] = Field(
        default=(),
        max_length=100,
        description="list of names | fields that are removed; `x-debug-*` is a prefix",
    )

    @model_validator(mode="after")
    def _may_be_edited(self) -> Self:
        for key, names in (("set", self.set), ("add", self.add), ("remove", self.remove)):
            known = [in_cgi(name.lower().encode()) for name in names]
            for name, plain in zip(names, known, strict=True):
                owned = meant_by(name, self.OWNED)
                if owned is not None:
                    raise ValueError(f"{key}: {owned} is forwarding's own, got '{name}'")
                if known.count(plain) > 1:
                    raise ValueError(f"{key}: '{name}' is there twice")
        for key, values in (("set", self.set), ("add", self.add)):
            for name, value in values.items():
                try:
                    list(parts_of(value))
                except ValueError as error:
                    raise ValueError(f"{key}.{name}: {error}") from None
        return self

    def __bool__(self) -> bool:
        return bool(self.set or self.add or self.remove)

    def __str__(self) -> str:
        """What is done with which fields, as `balancer check` lists it."""
        done = (("set", self.set), ("add", self.add), ("remove", self.remove))
        return ", ".join(f"{verb} {name}" for verb, names in done for name in names)


class RequestFieldEdits(FieldEdits):
    """The same in requests to workers. A name stands for all that CGI and WSGI workers do not tell apart."""

    OWNED = (
        *_OF_CONNECTIONS,
        *("expect", "forwarded", "host", "traceparent", "tracestate", "via"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-request-id"),
    )


class ResponseFieldEdits(FieldEdits):
    """The same in responses to clients, those of the balancer included."""

    OWNED = (*_OF_CONNECTIONS, "date")


def parts_of(value: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a value: a text and "", or "" and the name of a variable. Raises ValueError for a brace that
    is neither that of a variable nor written twice."""
    for match in _PART.finditer(value):
        text, name = match.groups()
        if text is not None:
            yield text[0] if text in ("{{", "}}") else text, ""
        elif name in VARIABLES:
            yield "", name
        else:
            raise ValueError(
                f"must have in braces one of {', '.join(VARIABLES)}, and a brace itself twice, "
                f"got '{match[0]:.40}'"
            )
