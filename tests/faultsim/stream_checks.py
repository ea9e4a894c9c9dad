"""Invariants of HTTP/2 within the balancer: no stream outlives its request, and no window is kept without a reason."""

from __future__ import annotations

from collections.abc import Iterable

from balancer.cluster.cluster import Cluster
from balancer.downstream.http2.connection import Http2Connection
from balancer.downstream.http2.stream import SHORT_BYTES
from balancer.http.h2.library import LibraryError
from balancer.http.h2.limits import STREAM_WINDOW
from balancer.upstream.http2.connection import Http2Session
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.pool import Pool
from tests.faultsim.reading import Violation
from tests.faultsim.streams import StreamsEnd
from tests.faultsim.workers import Host


def check_streams(cluster: Cluster, pools: Iterable[Pool]) -> None:
    """Check all connections in HTTP/2."""
    for downstream in cluster.process.downstreams:
        if isinstance(downstream, Http2Connection) and not downstream.transport.is_closing():
            _check_client(downstream)
    for pool in pools:
        if isinstance(pool, MultiplexedPool):
            for connection in pool._connections:
                if isinstance(connection, Http2Session) and not connection.engine.is_closed:
                    _check_worker(connection)


def _check_client(connection: Http2Connection) -> None:
    engine, streams = connection.engine, connection._streams
    for number, owed in engine._open.items():
        stream = streams.get(number)
        if stream is None and number not in engine._unwanted:
            raise Violation(f"stream {number} of a client is read, and has no handler")
        if stream is not None and (owed != stream._withheld or (owed and not stream.is_held)):
            raise Violation(f"{owed} bytes of window of a client's stream, {stream._withheld} withheld")
    for number in streams:
        try:
            engine._session.stream_window(number)
        except LibraryError:
            raise Violation(f"stream {number} of a client has ended, and is being answered") from None
    for number, backlog in engine._bodies.waiting.items():
        if backlog.size > SHORT_BYTES and number not in streams and number not in connection._ended:
            raise Violation(f"{backlog.size} bytes wait for a client, and stream {number} is forgotten")
    for stream in connection._watched:
        if streams.get(stream.id) is not stream and connection._ended.get(stream.id) is not stream:
            raise Violation(f"stream {stream.id} of a client is watched, and has ended")


def _check_worker(session: Http2Session) -> None:
    engine, streams = session.engine, session._streams
    if len(streams) > session.leased:
        raise Violation(f"{len(streams)} streams of a worker, {session.leased} of them leased")
    for number, owed in engine._open.items():
        stream = streams.get(number)
        if stream is None:
            raise Violation(f"stream {number} of a worker is open, and no request waits for it")
        if owed != stream._unreturned or (owed >= STREAM_WINDOW // 4 and not stream._is_paused):
            raise Violation(f"{owed} bytes of window of a worker's stream, {stream._unreturned} withheld")
    for number in engine._bodies.waiting:
        if number not in streams:
            raise Violation(f"a body of stream {number} of a worker waits, and the stream has ended")


def has_open_streams(cluster: Cluster, hosts: Iterable[Host]) -> bool:
    """Whether a stream is open at either end of any connection."""
    for downstream in cluster.process.downstreams:
        if isinstance(downstream, Http2Connection):
            engine = downstream.engine
            if downstream._streams or downstream._ended or engine._open or engine._bodies.waiting:
                return True
    ends = (end for host in hosts for end in host.alive() if isinstance(end, StreamsEnd))
    return any(end.streams for end in ends if end.wire is not None and not end.wire.is_lost)
