"""Body of a request for a completion (OpenAI's API or Anthropic's), as far as routing reads it: the extra `inference`.

It is not compiled: msgspec makes its own code of the class. Nothing of a prompt is decoded: its JSON is found and left
as it is. Of a key that is there twice the last one counts, as for workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

DecodeError: Final = msgspec.DecodeError
ValidationError: Final = msgspec.ValidationError


ABSENT: Final = msgspec.Raw()


class CompletionBody(msgspec.Struct):
    """The keys that are read; `messages`, `prompt`, `tools` and `system` as JSON, `ABSENT` where they are."""

    model: str | None = None
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    session_id: str | None = None
    user: str | None = None


Values = tuple[str | None, Any, Any, Any, Any, bool | None, int | None, int | None, str | None, str | None]


class ModelKey(msgspec.Struct):
    """The key that routes ask for; the others may be anything."""

    model: str = ""


def model_of(body: bytes) -> str:
    """Return the model that a body names; "" for a body that names none, or that is no JSON object."""
    try:
        return _decode_model(body).model
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def value_of(text: bytes) -> Any:
    """Return the value of a JSON text, None for null and for what is none."""
    try:
        return _decode_any(text)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


_decode_any: Final = msgspec.json.Decoder().decode
_decode_model: Final = msgspec.json.Decoder(ModelKey).decode
values: Final[Callable[[Any], Values]] = msgspec.structs.astuple
decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder(CompletionBody).decode
digest: Final[Callable[[Any, int], int]] = xxh3_64_intdigest
