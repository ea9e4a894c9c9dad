"""A gRPC server and clients of the real `grpcio`, for tests. Messages are bytes: no generated code takes part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SERVICE = "steelyard.Test"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Context = Any  # grpc.aio.ServicerContext is generic at type-checking time only
Handler = Callable[..., Any]


class GrpcWorker:
    """A server; `called` are the methods in order, with their metadata. `answers` replaces the handler of a method."""

    def __init__(self, name: str = "w") -> None:
        self.name = name
        self.called: list[tuple[str, dict[str, str | bytes]]] = []
        self.answers: dict[str, Callable[[bytes, Context], Awaitable[bytes]]] = {}
        self.port = 0
        self.health = health.aio.HealthServicer()

    async def start(self, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> None:
        self.server = grpc.aio.server(options=[*UNLIMITED, ("grpc.so_reuseport", 0)])
        methods = {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "Echo": grpc.stream_stream_rpc_method_handler(self._echo),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self.server.add_insecure_port(address)
        else:
            self.port = self.server.add_secure_port(address, credentials)
        await self.server.start()

    async def stop(self, grace: float | None = None) -> None:
        await self.server.stop(grace)

    async def set_health(self, is_serving: bool) -> None:
        response = health_pb2.HealthCheckResponse
        await self.health.set("", response.SERVING if is_serving else response.NOT_SERVING)

    def _note(self, method: str, context: Context) -> None:
        self.called.append((method, dict(context.invocation_metadata())))

    async def _unary(self, message: bytes, context: Context) -> bytes:
        self._note("Unary", context)
        if "Unary" in self.answers:
            return await self.answers["Unary"](message, context)
        context.set_trailing_metadata((("x-worker", self.name),))
        return message

    async def _echo(self, messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Each message at once."""
        self._note("Echo", context)
        await context.send_initial_metadata((("x-initial", self.name),))
        async for message in messages:
            yield message
        yield b"half-closed"


def channel_to(port: int, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to the balancer, without retries of its own."""
    options = [*UNLIMITED, ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options)


def endpoints(workers: Iterable[GrpcWorker], scheme: str = "http", **given: Any) -> list[dict[str, Any]]:
    """The workers as endpoints w0, w1, …"""
    host = "localhost" if scheme == "https" else "127.0.0.1"
    return [
        {
            "id": f"w{i}",
            "address": f"{scheme}://{host}:{worker.port}",
            "region": "r",
            "transport": "http2",
            **given,
        }
        for i, worker in enumerate(workers)
    ]
