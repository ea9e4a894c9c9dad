"""Client of the fault injection interface of a running worker. Standard library only, synchronous."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from workers.errors import Unreachable

PATIENCE = 5.0  # seconds

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener that uses no proxy: a worker takes faults from its own machine only."""


def exchange(url: str, faults: dict[str, Any] | None) -> dict[str, Any]:
    """Set the faults of the worker at `url`, or with None read them; return the active faults.

    `{}` clears them. Raises Unreachable.
    """
    data = None if faults is None else json.dumps(faults).encode()
    method = "GET" if faults is None else "PUT"
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/-/faults", data, method=method)
        with DIRECT.open(request, timeout=PATIENCE) as response:
            in_force: dict[str, Any] = json.load(response)
            return in_force
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
            raise Unreachable(f"{url} answered {error.code}: {_in_words(text)}") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"{url}: {getattr(error, 'reason', error)}; is a worker running there?") from None


def _in_words(refusal: str) -> str:
    """Return what is wrong with each field; a text of another form as it is."""
    try:
        return "; ".join(f"{one['field']}: {one['message']}" for one in json.loads(refusal)["detail"])
    except (ValueError, TypeError, KeyError):
        return refusal
