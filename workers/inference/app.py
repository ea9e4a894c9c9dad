"""HTTP handlers of an emulated inference server: OpenAI's chat and completions API, vLLM's metrics, health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from workers.alarm import DeadlineTimer
from workers.connection_closing import reset
from workers.fault_interface import Control
from workers.faults import Switchboard, Treatment
from workers.inference.engine import Sequence
from workers.inference.real_time import RealTimeEngine
from workers.inference.requests import Answer, Body, ChatBody, CompletionBody, blocks_of, tokens_of
from workers.inference.settings import InferenceSettings
from workers.settings import Settings

LARGEST_BODY = 32 << 20

FAULTS = frozenset(
    ("slow", "hang", "fail", "fail_status", "reset", "cut", "rtt", "unhealthy", "down", "lasts")
)
"""Faults that such a server has, and their options."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class InferenceApp:
    """State and handlers of one inference server."""

    def __init__(
        self, served: InferenceSettings, settings: Settings, timer: DeadlineTimer, switchboard: Switchboard
    ) -> None:
        self.served = served
        self.settings = settings
        self.control = Control(switchboard, FAULTS, has_link=settings.round_trip > 0)
        self.is_draining = False
        self.engine = RealTimeEngine(served.engine, timer)
        self._switchboard = switchboard
        switchboard.subscribe(lambda faults: self.engine.slow_down(faults.slow))
        self._lengths = Random(f"{settings.seed}:answers")
        self._received = 0
        self._identity = {"X-Worker-Name": settings.name, "X-Worker-Region": settings.region}

    def application(self) -> web.Application:
        """Return the aiohttp application of this server."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_errors_as_json])
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{name:.+}", self.model)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/health", self.health)
        app.router.add_get("/healthz", self.health)
        self.control.add_to(app)
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._handle(request, ChatBody)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._handle(request, CompletionBody)

    async def models(self, _: web.Request) -> web.Response:
        """GET /v1/models: the one that is served."""
        return web.json_response({"object": "list", "data": [self._described()]})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME."""
        name = request.match_info["name"]
        return web.json_response(self._described()) if name == self.served.model else no_model(name)

    def _described(self) -> dict[str, Any]:
        one = {"id": self.served.model, "object": "model", "created": 0, "owned_by": "steelyard"}
        return {**one, "max_model_len": self.served.engine.longest}

    async def health(self, _: web.Request) -> web.Response:
        """GET /health: 200 while it serves, 503 when draining or switched to unhealthy."""
        while self._switchboard.current.hang == 1:
            await self._switchboard.changed()
        is_well = not (self._switchboard.current.unhealthy or self.is_draining)
        return web.Response(status=200 if is_well else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /metrics in the text format of Prometheus, with vLLM's names."""
        now, engine, model = self.engine.now(), self.engine.engine, self.served.engine
        labels = f'engine="0",model_name={json.dumps(self.served.model)}'
        sizes = f'block_size="{model.block_tokens}",num_gpu_blocks="{model.kv_blocks}"'
        rows = [
            ("num_requests_waiting", "gauge", labels, engine.waiting),
            ("num_requests_running", "gauge", labels, engine.running),
            ("kv_cache_usage_perc", "gauge", labels, engine.kv_usage(now)),
            ("cache_config_info", "gauge", f'{sizes},engine="0"', 1),
            ("prefix_cache_queries_total", "counter", labels, engine.queries),
            ("prefix_cache_hits_total", "counter", labels, engine.hits),
            ("num_preemptions_total", "counter", labels, engine.preemptions),
        ]
        lines = [
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}}} {value}\n"
            for name, kind, label, value in rows
        ]
        return web.Response(text="".join(lines))

    async def _handle(self, request: web.Request, kind: type[Body]) -> web.StreamResponse:
        try:
            body = kind.model_validate_json(await request.read())
        except web.RequestPayloadError:
            return refusal(400, "body: not in its Content-Encoding")
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            return refusal(400, f"{place or 'body'}: {first['msg']}", param=place.partition(".")[0] or None)
        if body.model not in (None, self.served.model):
            return no_model(body.model)
        while (treatment := self._switchboard.treatment()) is Treatment.HANG:
            await self._switchboard.changed()
        if treatment is Treatment.RESET:
            reset(request.transport)
        if treatment in (Treatment.RESET, Treatment.FAIL):
            return refusal(self._switchboard.current.fail_status, "fault", "InternalServerError")
        prompt = body.prompt_bytes()
        blocks = blocks_of(prompt, self.served.engine.block_tokens)
        sequence = Sequence(blocks, tokens_of(prompt), self._length_of(body))
        try:
            is_accepted = self.engine.submit(sequence)
        except ValueError as error:
            return refusal(400, str(error), param="messages" if kind is ChatBody else "prompt")
        if not is_accepted:
            busy = refusal(self.served.busy_status, "the waiting queue is full", "ServiceUnavailableError")
            busy.headers["Retry-After"] = "1"
            return busy
        self._received += 1
        request_id = request.headers.get("X-Request-ID", str(self._received))
        answer = Answer(body, self.served.model, request_id, sequence, sum(blocks[-1:]))
        try:
            if body.stream:
                return await self._stream(request, sequence, answer, treatment is Treatment.CUT)
            await self.engine.wait_for(sequence, sequence.output)
            return web.Response(body=answer.whole(), content_type="application/json", headers=self._identity)
        finally:
            self.engine.cancel(sequence)

    async def _stream(
        self, request: web.Request, sequence: Sequence, answer: Answer, is_cut: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._identity)
        response.content_type, response.charset = "text/event-stream", "utf-8"
        await response.prepare(request)
        end = sequence.output // 2 if is_cut else sequence.output
        sent = 0
        while sent < end:
            generated = min(await self.engine.wait_for(sequence, sent + 1), end)
            await response.write(answer.events(sent, generated))
            sent = generated
        if is_cut and request.transport is not None:
            request.transport.close()
            await asyncio.get_running_loop().create_future()  # until the server cancels the handler
        await response.write(answer.closing())
        return response

    def _length_of(self, body: Body) -> int:
        """Tokens of the answer: drawn, and bounded by the request."""
        drawn = self._lengths.randint(*self.served.tokens)
        if body.most is None:
            return drawn
        return body.most if body.ignore_eos else min(drawn, body.most)


def refusal(
    status: int, message: str, kind: str = "BadRequestError", param: str | None = None
) -> web.Response:
    """An error in OpenAI's format."""
    error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


def no_model(name: str | None) -> web.Response:
    return refusal(404, f"the model {name!r} does not exist", "NotFoundError", "model")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        refused = refusal(error.status, error.reason, kind)
        if "Allow" in error.headers:
            refused.headers["Allow"] = error.headers["Allow"]
        return refused
