"""Client of a running balancer's admin interface.

Requests without a response are retried: a lost reading must not end the evaluation, and restoring the policy must not
fail because of one lost connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from balancer.control.admin.client import AdminClient, AdminError, target_of
from experiments.errors import BadInputError
from experiments.switchback.readings import LiveError

TRIES = 4
PAUSE = 0.5
"""Attempts per request, and base of the pause between them in seconds."""


class LiveBalancer:
    """The balancer at `url`, over HTTP or its admin socket; `cluster` is a named cluster of it.

    All requests raise `BadInputError` if they are rejected, and `LiveError`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        cluster: str | None = None,
    ) -> None:
        self._client = AdminClient(url, token)
        self._sleep = sleep
        self._cluster = cluster

    async def latency(self) -> dict[str, Any]:
        """Document of /-/latency."""
        return await self._ask("GET", "/-/latency")

    async def check(self, policy: dict[str, Any]) -> None:
        """Check that a policy could be applied."""
        await self._ask("PUT", "/-/policy?check", policy)

    async def apply(self, policy: dict[str, Any]) -> None:
        """Apply a policy."""
        await self._ask("PUT", "/-/policy", policy)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        problem = ""
        for number in range(TRIES):
            if number:
                await self._sleep(PAUSE * number)
            try:
                target = target_of(path, self._cluster)
                status, text = await asyncio.to_thread(self._client.request, method, target, body)
            except AdminError as error:
                problem = str(error)
                continue
            if status < 500:
                return self._checked(status, path, document_in(text))
            problem = f"{self._client.url} answers {status}"
        raise LiveError(f"{method} {path}: {problem}")

    def _checked(self, status: int, path: str, document: dict[str, Any]) -> dict[str, Any]:
        url = self._client.url
        if status == 404 and self._cluster is not None and "error" in document:
            raise BadInputError(f"--cluster: {document['error'].removeprefix('cluster: ')}")
        if status == 404:
            raise BadInputError(
                f"URL: {url} has no admin socket on this machine and takes admin requests only with its token, or is "
                "no balancer of this version; see --token"
            )
        if status >= 400:
            raise BadInputError(f"{url}{path}: {document.get('error', status)}")
        return document


def document_in(text: bytes) -> dict[str, Any]:
    """JSON object in a response; empty if it is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
