"""Control requests to the balancers and workers that an experiment runs on this machine, without retries."""

from __future__ import annotations

import asyncio
from typing import Any

from balancer.control.admin.client import AdminClient, AdminError
from experiments.errors import FleetFailedError
from workers.errors import Unreachable
from workers.fault_client import exchange

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
    try:
        await asyncio.to_thread(exchange, url_of(address, ""), faults)
    except Unreachable as error:
        raise FleetFailedError(f"PUT /-/faults: {error}") from None
