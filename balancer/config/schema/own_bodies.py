"""Bodies of the balancer's own responses: of fixed answers, and of errors."""

from __future__ import annotations

import re
from functools import cached_property
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from balancer.config.schema.section import Section
from balancer.errors import REASONS

MOST_BYTES: Final = 1 << 20
"""Bytes of a body from a file, which every process keeps."""

_STATUSES: Final = re.compile(r"[45]([0-9]{2}|xx)").fullmatch


def _error(name: str) -> str:
    if name not in REASONS and not _STATUSES(name):
        raise ValueError(
            f"must be a reason of docs/operations.md, a status such as 503, 4xx or 5xx, got '{name:.40}'"
        )
    return name


ErrorName = Annotated[str, AfterValidator(_error)]
MediaType = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]{0,254}[!-~])?$")]


class OwnBody(Section):
    """A body, in the configuration or in a file, which is read when the configuration is loaded."""

    body: str = Field(default="", max_length=65_536, description="text | its body, at most 64 KiB")
    file: Path | None = Field(
        default=None,
        description="file | its body from a file of at most 1 MiB, read at the start and by a reload",
    )
    content_type: MediaType = Field(
        default="text/plain; charset=utf-8",
        description="media type | its Content-Type, if it has a body; default of a file: by the end of its name",
    )

    @model_validator(mode="after")
    def _has_one_body(self) -> Self:
        if self.file is not None:
            if self.body:
                raise ValueError("file: give body or file, not both")
            kind = guess_type(self.file.name)[0] or "application/octet-stream"
            self._derive(content_type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        return self

    @cached_property
    def content(self) -> bytes:
        """The body, which is read once. Raises ValueError, whose message begins with the key."""
        if self.file is None:
            return self.body.encode()
        try:
            with self.file.open("rb") as file:
                body = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise ValueError(f"file: cannot read {self.file}: {error.strerror}") from None
        if len(body) > MOST_BYTES:
            raise ValueError(f"file: must have at most {MOST_BYTES} bytes, {self.file} has more")
        return body
