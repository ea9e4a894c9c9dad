"""RPCs on a stage: requests of a client, and scripts of workers that speak gRPC."""

from __future__ import annotations

from typing import Any

from tests.support.http2_client import Http2Client, fields
from tests.support.scripted_transports import Http2, Play, Script, over_http2
from tests.support.stage import Stage, endpoint

MESSAGE = b"\0\0\0\0\2hi"


OF_RPC = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))


async def serve_grpc(stage: Stage, *scripts: Script, **settings: Any) -> list[list[Http2]]:
    """Serve with a gRPC worker for each script; return their plays as they begin."""
    plays: list[list[Any]] = [[] for _ in scripts]
    endpoints = []
    for number, script in enumerate(scripts):
        worker = over_http2(script, plays[number])
        await stage.start(worker)
        endpoints.append(endpoint(worker, f"w{number}", transport="http2"))
    await stage.serve(**{"endpoints": endpoints, **settings})
    return plays


def rpc(client: Http2Client, *others: tuple[bytes, bytes], body: bytes | None = MESSAGE) -> int:
    """Begin an RPC with a message, or with an open stream without a body."""
    stream = client.begin(fields(b"/a.B/C", *OF_RPC, *others, method=b"POST"))
    if body is not None:
        client.send(stream, body, is_last=True)
    return stream


def ending(code: int, *fields: tuple[bytes, bytes]) -> Script:
    """A response without messages."""

    async def script(play: Play) -> None:
        await play.read()
        assert isinstance(play, Http2)
        pairs = [(b"content-type", b"application/grpc"), (b"grpc-status", b"%d" % code), *fields]
        play.peer.h2.send_headers(play.stream_id, [(b":status", b"200"), *pairs], end_stream=True)
        play.peer.flush()

    return script
