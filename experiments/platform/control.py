"""Control requests to the balancers and workers that an experiment runs on this machine, without retries."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from balancer.control.admin.client import AdminClient, AdminError
from experiments.errors import FleetFailedError

CONTROL_WITHIN = 5.0


def url_of(address: tuple[str, int], path: str) -> str:
    return f"http://{address[0]}:{address[1]}{path}"


async def request_balancer(
    address: tuple[str, int], method: str, path: str, body: dict[str, Any] | None = None
) -> Any:
    """Send a request to the admin interface of the balancer at `address` and return its answer.

    Raises `FleetFailedError`, also when the balancer refuses the request.
    """
    client = AdminClient(url_of(address, ""), timeout=CONTROL_WITHIN)
    try:
        return await asyncio.to_thread(client.document, method, path, body)
    except AdminError as error:
        raise FleetFailedError(f"{method} {path}: {error}") from None


async def balancer_status(address: tuple[str, int]) -> dict[str, Any]:
    """Status document of the balancer at `address`. Raises `FleetFailedError`."""
    status: dict[str, Any] = await request_balancer(address, "GET", "/-/status")
    return status


async def request_worker(address: tuple[str, int], faults: dict[str, Any]) -> None:
    """Replace the active faults of the worker at `address`. Raises `FleetFailedError`."""
    await asyncio.to_thread(_put, url_of(address, "/-/faults"), faults)


def _put(url: str, body: dict[str, Any]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    fields = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), fields, method="PUT")
    try:
        with opener.open(request, timeout=CONTROL_WITHIN):
            pass
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        raise FleetFailedError(f"PUT {url}: {error.code} {text[:200]}") from None
    except OSError as error:
        raise FleetFailedError(f"PUT {url}: {error}") from None
