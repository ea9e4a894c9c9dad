"""Orders to processes that run, over their control interfaces on the loopback: ask, and insist.

Rule of this file: what is refused is an error that quotes the refusal; nothing is tried twice.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from experiments.errors import FleetFailedError

CONTROL_WITHIN = 5.0


def url_of(address: tuple[str, int], path: str) -> str:
    return f"http://{address[0]}:{address[1]}{path}"


async def obeyed(method: str, url: str, body: dict[str, Any] | None = None) -> None:
    """Raises FleetFailedError when the answer is a refusal."""
    status, text = await asyncio.to_thread(asked, method, url, body)
    if not 200 <= status < 300:
        raise FleetFailedError(f"{method} {url}: {status} {text[:200]}")


def asked(method: str, url: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and text of a request on the loopback, no proxy in between; 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with opener.open(request, timeout=CONTROL_WITHIN) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)
