"""HTTP handlers of the worker: `/work` and `/healthz`, and bodies of known hash.

Handlers decide and wait; how long they wait is computed elsewhere. Errors are JSON with a
reason: `{"error": "queue_full", …}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import NamedTuple

from aiohttp import StreamReader, web
from pydantic import BaseModel, Field, ValidationError

from workers.alarm import DeadlineTimer
from workers.connection_closing import ConnectionClosing, reset
from workers.fault_interface import Control, invalid
from workers.faults import Faults, GcPause, Switchboard, Treatment
from workers.link import worker_transport_of
from workers.service import ColdStart, LoadReport
from workers.settings import Settings
from workers.slots import NO_ROOM, Slots

TILE = Random("steelyard").randbytes(65521)
"""Byte i of a generated body is `TILE[i % len(TILE)]`. The tile's length is prime, so a chunk that is lost, repeated or
out of order changes the hash whatever its size."""


class Digest(NamedTuple):
    """SHA-256 of a body, in hexadecimal, and its length in bytes."""

    sha256: str
    length: int


EMPTY = Digest(hashlib.sha256().hexdigest(), 0)


async def digest_of(content: StreamReader) -> Digest:
    """Read a request's body to its end and return its digest, without keeping the body."""
    if content.at_eof():
        return EMPTY
    sha256, length = hashlib.sha256(), 0
    async for chunk in content.iter_any():
        sha256.update(chunk)
        length += len(chunk)
    return Digest(sha256.hexdigest(), length)


def pieces(length: int) -> Iterator[bytes]:
    """Yield the generated body of `length` bytes, a tile at a time."""
    whole, rest = divmod(length, len(TILE))
    for _ in range(whole):
        yield TILE
    if rest:
        yield TILE[:rest]


@lru_cache(maxsize=256)
def digest_of_generated(length: int) -> Digest:
    """Return the digest of the generated body of `length` bytes."""
    sha256 = hashlib.sha256()
    for piece in pieces(length):
        sha256.update(piece)
    return Digest(sha256.hexdigest(), length)


FAULTS = Faults.model_fields.keys() - {"cut"}
"""Faults that such a worker has, and their options."""

DEMAND = "X-Service-Times"
LONGEST_SERVICE = 3600.0
LARGEST_BODY = 1 << 30
_HASHED_INLINE = 1 << 20  # bytes; hashing more takes over a millisecond and is done in a thread


class Wish(BaseModel):
    """Query parameters of `/work`; others are ignored."""

    bytes: int | None = Field(default=None, ge=0, le=LARGEST_BODY, description="length of a generated body")
    chunked: bool = Field(default=False, description="frame the answer in chunks")


PLAIN = Wish()


class WorkerApp:
    """State and handlers of one worker. `now` is `time.monotonic()` throughout."""

    def __init__(self, settings: Settings, timer: DeadlineTimer, switchboard: Switchboard) -> None:
        self.settings = settings
        self.switchboard = switchboard
        self.control = Control(switchboard, FAULTS, has_link=settings.round_trip > 0)
        self.is_draining = False
        self._timer = timer
        now = self._arrived_at = time.monotonic()
        self._service = settings.service.scaled(1 / settings.speed)
        self._slots = Slots(settings.slots, settings.queue_limit)
        self._standstill = GcPause(timer, self._slots)
        switchboard.subscribe(self._standstill.apply)
        self._load = LoadReport(settings.name, settings.region, self._slots, now)
        self._dormancy = ColdStart(settings.sleep_after, settings.wake_time, now, settings.starts_asleep)
        self._service_rng = Random(f"{settings.seed}:service")
        self._endings = ConnectionClosing(
            timer, Random(f"{settings.seed}:close"), settings.close_idle, settings.max_requests_per_connection
        )

    def application(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/work", self.work)
        app.router.add_get("/healthz", self.healthz)
        self.control.add_to(app)
        return app

    # ── traffic ──────────────────────────────────────────────────────────────────────────────────────────

    async def work(self, request: web.Request) -> web.StreamResponse:
        """Read the body, wait for a slot and for the service time, respond."""
        self._endings.begin(request)
        self._load.in_flight += 1
        try:
            response = await self._handle(request)
        finally:
            self._load.in_flight -= 1
            self._dormancy.note_activity(time.monotonic())
        self._endings.finish(request, response)
        return response

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """Respond 200 while it serves, 503 when draining or switched to unhealthy.

        A hang or a pause also delays this response.
        """
        await self._standstill.over()
        while self.switchboard.current.hang == 1:
            await self.switchboard.changed()
        report = self._load.standing(time.monotonic())
        if self.switchboard.current.unhealthy or self.is_draining:
            return self._refusal(503, "unhealthy", report)
        return web.json_response({"status": "ok", "worker": self.settings.name}, headers=report)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            wish = Wish.model_validate(dict(request.query)) if request.query_string else PLAIN
        except ValidationError as error:
            return invalid(400, "invalid_query", error)
        digest = await digest_of(request.content)
        moved_at = await self._standstill.over()
        while (treatment := self.switchboard.treatment()) is Treatment.HANG:
            await self.switchboard.changed()
        if treatment is Treatment.RESET:
            reset(request.transport)
        if treatment in (Treatment.RESET, Treatment.FAIL):
            return self._refuse(self.switchboard.current.fail_status, "fault")
        if treatment is not Treatment.SERVE:
            raise NotImplementedError(treatment)
        return await self._serve(request, wish, digest, moved_at)

    async def _serve(
        self, request: web.Request, wish: Wish, digest: Digest, moved_at: float
    ) -> web.StreamResponse:
        """Serve a request that is admitted no earlier than `moved_at`, the end of the last pause."""
        worker_transport = worker_transport_of(request.transport)
        now = self._arrived_at = max(
            self._arrived_at,
            moved_at,
            time.monotonic() if worker_transport is None else worker_transport.instant,
        )
        try:
            service_time = self.switchboard.service_time(self._work_of(request))
        except ValueError as error:
            return self._refuse(400, str(error))
        awake_at = self._dormancy.awake_at(now)
        start_at = max(now, self._slots.free_at, awake_at)
        finish_at = self._slots.admit_later(now, service_time, awake_at)
        if finish_at == NO_ROOM:
            return self._refuse(503, "queue_full", retry_after=self._slots.room_at(now) - now)
        finished_at = await self._standstill.served(finish_at)
        if worker_transport is not None:
            worker_transport.set_event_time(finished_at)
        headers = self._load.headers(finished_at, service_time)
        request_id = request.headers.get("X-Request-ID")
        if request_id is not None:
            headers["X-Request-ID"] = request_id
        if wish.bytes is not None:
            return await self._send_generated(request, wish.bytes, wish.chunked, headers)
        account = {
            "worker": self.settings.name,
            "region": self.settings.region,
            "method": request.method,
            "request_id": request_id,
            "body_sha256": digest.sha256,
            "body_bytes": digest.length,
            "service_time": service_time,
            "queue_time": start_at - now,
        }
        response = web.json_response(account, headers=headers)
        if wish.chunked:
            response.enable_chunked_encoding()
        return response

    def _work_of(self, request: web.Request) -> float:
        """Return the service time in seconds, from the request's header or drawn. Raises ValueError."""
        place, demand = self.settings.demand, request.headers.get(DEMAND)
        if place is None or demand is None:
            return self._service.draw(self._service_rng)
        try:
            seconds = float(demand.split(",")[place])
        except (ValueError, IndexError):
            seconds = math.nan
        if not 0 <= seconds <= LONGEST_SERVICE:
            raise ValueError("invalid_service_times")
        return seconds / self.settings.speed

    async def _send_generated(
        self, request: web.Request, length: int, is_chunked: bool, headers: dict[str, str]
    ) -> web.StreamResponse:
        known = length <= _HASHED_INLINE
        digest = (
            digest_of_generated(length) if known else await asyncio.to_thread(digest_of_generated, length)
        )
        response = web.StreamResponse(headers={**headers, "X-Body-SHA256": digest.sha256})
        response.content_type = "application/octet-stream"
        if is_chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = length
        await response.prepare(request)
        if request.method != "HEAD":
            for piece in pieces(length):
                await response.write(piece)
        await response.write_eof()
        return response

    # ── rejections ──────────────────────────────────────────────────────────────────────────────────────

    def _refuse(self, status: int, error: str, retry_after: float | None = None) -> web.Response:
        headers = self._load.headers(time.monotonic())
        if retry_after is not None:
            # Whole seconds, and never 0, which would invite an immediate retry (RFC 9110 §10.2.3).
            headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        return self._refusal(status, error, headers)

    def _refusal(self, status: int, error: str, headers: dict[str, str]) -> web.Response:
        return web.json_response(
            {"error": error, "worker": self.settings.name}, status=status, headers=headers
        )
