"""Client of a running balancer's control interface.

Requests without a response are retried: a lost reading must not end the evaluation, and restoring the policy must not
fail because of one lost connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from balancer.admin.client import AdminClient
from experiments.errors import BadInputError, ExperimentError

PATIENCE = 10.0
"""Timeout for a response in seconds."""

TRIES = 4
PAUSE = 0.5
"""Attempts per request, and base of the pause between them in seconds."""


class BalancerUnreachable(ExperimentError):
    """The balancer does not respond."""

    exit_code = 3


class LiveBalancer(Protocol):
    """Operations of a balancer that an evaluation needs.

    All raise `BadInputError` for a rejected request, and `BalancerUnreachable`.
    """

    async def look(self) -> dict[str, Any]:
        """Document of /-/latency."""

    async def check(self, policy: dict[str, Any]) -> None:
        """Check that a policy could be applied."""

    async def use(self, policy: dict[str, Any]) -> None:
        """Apply a policy."""


class HttpBalancer:
    """The balancer at `url`, over HTTP or its admin socket."""

    def __init__(
        self, url: str, token: str | None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._url = url.rstrip("/")
        self._sleep = sleep
        fields = {"Authorization": f"Bearer {token}"} if token else {}
        path = AdminClient(url).path
        self._session = ClientSession(
            "http://localhost" if path is not None else self._url,
            connector=UnixConnector(path) if path is not None else None,
            headers=fields,
            timeout=ClientTimeout(total=PATIENCE),
        )

    async def __aenter__(self) -> HttpBalancer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def look(self) -> dict[str, Any]:
        """Document of /-/latency."""
        return await self._ask("GET", "/-/latency")

    async def check(self, policy: dict[str, Any]) -> None:
        """Check that a policy could be applied."""
        await self._ask("PUT", "/-/policy?check", policy)

    async def use(self, policy: dict[str, Any]) -> None:
        """Apply a policy."""
        await self._ask("PUT", "/-/policy", policy)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        problem = ""
        for number in range(TRIES):
            if number:
                await self._sleep(PAUSE * number)
            try:
                async with self._session.request(method, path, json=body) as answer:
                    if answer.status < 500:
                        return self._checked(answer.status, path, await self._json(answer))
                    problem = f"answers {answer.status}"
            except (ClientError, TimeoutError, OSError) as error:
                problem = str(error) or type(error).__name__
        raise BalancerUnreachable(f"{self._url}{path}: {problem}")

    @staticmethod
    async def _json(answer: Any) -> dict[str, Any]:
        try:
            document: dict[str, Any] = await answer.json(content_type=None)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def _checked(self, status: int, path: str, document: dict[str, Any]) -> dict[str, Any]:
        if status == 404:
            raise BadInputError(
                f"URL: {self._url} has no admin socket on this machine and takes admin requests only with its "
                "token, or is no balancer of this version; see --token"
            )
        if status >= 400:
            raise BadInputError(f"{self._url}{path}: {document.get('error', status)}")
        return document
