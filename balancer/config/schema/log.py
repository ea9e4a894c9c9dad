"""The table [log] of the configuration: the access log, its format and its fields."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from balancer.config.schema.section import FileName, QueueLength, Section, Share, require_unique

LOG_FIELDS: Final = (
    *("time", "end", "reason", "detail", "method", "path", "sent_path", "host", "request_id", "client"),
    *("forwarded_for", "protocol", "version", "cluster", "endpoint", "region", "policy", "attempts", "connection"),
    *("head", "queue", "connect", "first_byte", "service", "total", "status", "grpc_status", "bytes", "bytes_in"),
    "sample",
)  # fmt: skip
"""Fields of a line, in their order; `balancer/log/lines.py` has their values."""

TOKEN_FIELDS: Final = ("ttft", "tpot", "prompt_tokens", "cached_tokens", "output_tokens")
"""Fields of requests for inference, where prompts are read."""

FURTHER_FIELDS: Final = (
    *("duration", "referer", "route", "tls_version", "trace_id", "user_agent"),
    *TOKEN_FIELDS,
)
"""Fields of lines whose fields are chosen."""

MOST_FIELDS: Final = 64

_FIELD_OF_MESSAGE: Final = re.compile(r"(request|response):([A-Za-z0-9!#$%&'*+.^_`|~-]{1,128})")

SECRETS: Final = ("authorization", "cookie", "proxy-authorization", "set-cookie")
"""Fields of messages that hold credentials."""


def _log_field(name: str) -> str:
    match = _FIELD_OF_MESSAGE.fullmatch(name)
    if match is not None:
        return f"{match[1]}:{match[2].lower()}"
    if name not in LOG_FIELDS and name not in FURTHER_FIELDS:
        known = ", ".join(sorted((*LOG_FIELDS, *FURTHER_FIELDS)))
        raise ValueError(f"must be request:NAME, response:NAME or one of {known}; got '{name:.60}'")
    return name


class LogConfig(Section):
    """The access log: one line per request."""

    access: Literal["off", "text", "json", "logfmt", "combined"] = Field(
        default="off",
        description="format of the access log, one line per request: `off`, `text`, `json`, `logfmt` or `combined`, "
        "that of nginx and Apache; `text` if `path` is given, `json` with `fields`; see [Access log](access-log.md)",
    )
    fields: tuple[Annotated[str, AfterValidator(_log_field)], ...] = Field(
        default=(),
        max_length=MOST_FIELDS,
        description="list of names | fields of a line and their order, for `json` and `logfmt`; default: all but those "
        "of [Chosen fields](access-log.md#chosen-fields)",
    )
    path: FileName | None = Field(
        default=None,
        min_length=1,
        description="file | log file, appended to and reopened on SIGHUP; default: standard output",
    )
    sample: Share = Field(
        default=1.0, description="share of requests that are logged; errors always are, except 404 `no_route`"
    )
    queue: QueueLength = Field(
        default=10_000,
        description="entries | number of entries that may wait to be written, 1 to 1000000; more are dropped and "
        "counted",
    )
    admin: bool = Field(default=True, description="logging of admin requests, those under `/-/`")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.fields:
            self._derive(access="json")
            if self.access in ("text", "combined"):
                raise ValueError(f"fields: needs access = 'json' or 'logfmt', got '{self.access}'")
            require_unique(self.fields, "fields: '{value}' is there twice")
        elif self._has("path"):
            self._derive(access="text")
        return self
