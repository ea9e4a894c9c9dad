"""Endpoint discovery by Kubernetes: list and watch over HTTP, resumption, failures that keep the known endpoints."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from balancer.cluster.discovery.kubernetes.api import MAX_ANSWER_BYTES, MAX_SLICES
from balancer.cluster.discovery.kubernetes.source import LONGEST_PAUSE, WATCH_TIME, KubernetesSource
from balancer.config.problems import ConfigError
from tests.support.admin_requests import metrics
from tests.support.admin_requests import status as balancer_status
from tests.support.certificates import Shelf
from tests.support.kubernetes_api import (
    ApiServer,
    answer,
    endpoint_slice,
    error,
    leaving,
    pod,
    slice_list,
    status,
)
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, answering_after, get, response

SOURCE = "kubernetes shop/workers"


class Cluster:
    """An API server that the balancer of `stage` watches, and the lines that discovery logs."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.api = ApiServer()
        self.token_file = folder / "token"
        self.token_file.write_text("first\n")
        self.lines: list[str] = []
        self.server = ScriptedWorker(self.api.script)
        self.keys: dict[str, Any] = {}

    async def start(self, **keys: Any) -> dict[str, Any]:
        """Start the API server; return the table `discovery` of a balancer that asks it."""
        await self.server.start()
        scheme = "https" if self.server.tls else "http"
        self.keys = {
            "service": "workers",
            "namespace": "shop",
            "server": f"{scheme}://127.0.0.1:{self.server.port}",
            "token_file": str(self.token_file),
            **keys,
        }
        return {"kubernetes": self.keys}

    async def serve(self, *workers: Any, **keys: Any) -> None:
        """Start the API server and the balancer, and wait until it watches."""
        await self.stage.serve(*workers, discovery=await self.start(**keys))
        self.stage.control_plane.discovery.say = self.lines.append

    async def watched(self) -> None:
        """Wait for the watch."""
        await self.until(lambda: self.api.watching)

    async def serve_one(self, **keys: Any) -> None:
        """Start with one endpoint, 10.0.0.1-9000, which is watched."""
        self.api.put("workers-a", pod("10.0.0.1"))
        await self.serve(**keys)
        await self.watched()

    async def end_watch(self) -> None:
        """Have the API server end the watch."""
        self.api.end()
        await self.until(lambda: not self.api.watching)

    @property
    def source(self) -> KubernetesSource:
        (source,) = self.stage.control_plane.discovery.sources
        assert isinstance(source, KubernetesSource)
        return source

    @property
    def known(self) -> list[str]:
        return list(self.stage.control_plane.registry.members)

    def tick(self) -> None:
        self.stage.control_plane.discovery.tick(self.stage.clock.at)

    async def until(self, condition: Callable[[], object]) -> None:
        """Poll without time passing until the condition holds."""

        def is_so() -> object:
            self.tick()
            return condition()

        await self.stage.eventually(is_so)

    async def find(self, *known: str) -> None:
        """Wait until these are the endpoints."""
        await self.until(lambda: self.known == list(known))

    async def requests(self, number: int) -> None:
        """Wait until the API server has got so many requests."""
        await self.until(lambda: len(self.api.requests) >= number)

    def pass_time(self, seconds: float) -> None:
        self.stage.clock.at += seconds
        self.tick()

    async def stop(self) -> None:
        """End the API server; its port refuses connections."""
        await self.server.stop()

    async def start_again(self) -> None:
        await self.server.start(socket.create_server(("127.0.0.1", self.server.port)))


@pytest.fixture
async def cluster(stage: Stage, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(stage, tmp_path)
    yield cluster
    await cluster.stop()


# --- list and watch


async def test_slices_become_endpoints(cluster: Cluster, stage: Stage) -> None:
    """Listed before the first client is served, with the configured keys; zones are regions."""
    worker = await stage.worker(response(b"found"))
    port = {"name": "http", "protocol": "TCP", "port": worker.port}
    cluster.api.put("workers-a", pod("127.0.0.1"), ports=[port])
    cluster.api.put("workers-b", pod("::1", zone="eu-1b"), ports=[port], family="IPv6")
    await cluster.serve(weight=2, max_in_flight=5, round_trip=0.1)
    assert (await stage.ask(get())).body == b"found"
    document = await balancer_status(stage)
    four, six = document["endpoints"]
    assert (four["id"], four["address"]) == (f"127.0.0.1-{worker.port}", f"http://127.0.0.1:{worker.port}")
    assert (six["id"], six["address"]) == (f"ip6---1-{worker.port}", f"http://[::1]:{worker.port}")
    assert (four["region"], six["region"]) == ("eu-1a", "eu-1b")
    for each in (four, six):
        assert (each["weight"], each["max_in_flight"], each["source"]) == (2, 5, SOURCE)
    assert document["discovery"] == [{"source": SOURCE, "endpoints": 2, "problem": None}]
    lines = (await metrics(stage)).splitlines()
    assert f'steelyard_discovered{{source="{SOURCE}"}} 2.0' in lines
    assert f'steelyard_discovery_good{{source="{SOURCE}"}} 1.0' in lines


async def test_changes_are_watched(cluster: Cluster, stage: Stage) -> None:
    """Scaling up and down and not ready; the state of the endpoint that stays is kept."""
    api = cluster.api
    await cluster.serve_one()
    assert cluster.known == ["10.0.0.1-9000"]
    state = stage.state("10.0.0.1-9000")
    api.put("workers-a", pod("10.0.0.1"), pod("10.0.0.2"))
    await cluster.find("10.0.0.1-9000", "10.0.0.2-9000")
    api.put("workers-b", pod("10.0.0.3"))
    await cluster.find("10.0.0.1-9000", "10.0.0.2-9000", "10.0.0.3-9000")
    api.put("workers-a", pod("10.0.0.1"), pod("10.0.0.2", ready=False, serving=False))
    await cluster.find("10.0.0.1-9000", "10.0.0.3-9000")
    api.delete("workers-b")
    await cluster.find("10.0.0.1-9000")
    assert stage.state("10.0.0.1-9000") is state
    assert (len(api.lists), len(api.watches)) == (1, 1)


async def test_terminating_pod_is_drained(cluster: Cluster, stage: Stage) -> None:
    """It gets no new requests, and its request in flight is answered."""
    go = asyncio.Event()
    old, new = await stage.worker(answering_after(go, response(b"old"))), await stage.worker(response(b"new"))
    ports = [[{"name": "http", "port": worker.port}] for worker in (old, new)]
    cluster.api.put("workers-a", pod("127.0.0.1"), ports=ports[0])
    await cluster.serve()
    await cluster.watched()
    client = await stage.asking(old, get())
    cluster.api.put("workers-b", pod("127.0.0.1"), ports=ports[1])
    cluster.api.put("workers-a", leaving("127.0.0.1"), ports=ports[0])
    await cluster.find(f"127.0.0.1-{new.port}")
    assert {(await stage.ask(get())).body for _ in range(4)} == {b"new"}
    (left,) = (await balancer_status(stage))["leaving"]
    assert (left["id"], left["in_flight"]) == (f"127.0.0.1-{old.port}", 1)
    go.set()
    assert (await client.response()).body == b"old"


async def test_list_in_pages(cluster: Cluster) -> None:
    """Slices of all pages."""
    for number in range(1, 4):
        cluster.api.put(f"workers-{number}", pod(f"10.0.0.{number}"))
    cluster.api.most = 1
    await cluster.serve()
    assert cluster.known == ["10.0.0.1-9000", "10.0.0.2-9000", "10.0.0.3-9000"]
    assert [request.get("continue") for request in cluster.api.lists] == [
        None,
        f"{cluster.api.version}:workers-1",
        f"{cluster.api.version}:workers-2",
    ]


# --- resumption


async def test_watch_continues_at_the_last_bookmark(cluster: Cluster) -> None:
    """A watch that the API server ends is no failure, and nothing is listed again."""
    api = cluster.api
    await cluster.serve_one()
    assert api.watches[0]["allowWatchBookmarks"] == "true"
    assert api.watches[0]["timeoutSeconds"] == str(WATCH_TIME)
    api.bookmark()
    await cluster.end_watch()
    cluster.pass_time(WATCH_TIME)
    await cluster.watched()
    assert [request["resourceVersion"] for request in api.watches] == [str(api.version - 1), str(api.version)]
    assert len(api.lists) == 1
    assert (cluster.source.problem, cluster.lines) == (None, [])


async def test_watch_that_ends_at_once_is_not_repeated_at_once(cluster: Cluster) -> None:
    api = cluster.api
    api.put("workers-a", pod("10.0.0.1"))
    await cluster.serve()
    for number in range(1, 4):
        await cluster.requests(number + 1)
        api.end()
        await cluster.until(lambda: not api.watching)
        cluster.pass_time(0.99)
        await cluster.stage.turn()
        assert len(api.watches) == number
        cluster.pass_time(1.02)
    await cluster.watched()


async def test_changes_during_an_outage_are_found(cluster: Cluster) -> None:
    """The watch continues at the last version, so that they are sent."""
    api = cluster.api
    await cluster.serve_one()
    await cluster.stop()
    api.put("workers-b", pod("10.0.0.2"))
    api.delete("workers-a")
    await cluster.until(lambda: cluster.source.problem)
    await cluster.start_again()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.find("10.0.0.2-9000")
    assert len(api.lists) == 1
    assert cluster.source.problem is None
    assert len(cluster.lines) == 1
    assert cluster.lines[0].endswith("; the endpoints that are known stay")


async def test_forgotten_version_lists_again(cluster: Cluster) -> None:
    """410 in the first event: a slice that was removed in the meantime is gone, at once and without a problem."""
    api = cluster.api
    api.put("workers-a", pod("10.0.0.1"))
    api.put("workers-b", pod("10.0.0.2"))
    await cluster.serve()
    await cluster.watched()
    await cluster.end_watch()
    api.delete("workers-a")
    api.forget()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.find("10.0.0.2-9000")
    assert len(api.lists) == 2
    assert (cluster.source.problem, cluster.lines) == (None, [])


@pytest.mark.parametrize(("code", "lists"), [(429, 1), (500, 1), (503, 1), (403, 2), (504, 2)])
async def test_refused_watch_lists_again_only_if_the_version_may_be_the_cause(
    cluster: Cluster, code: int, lists: int
) -> None:
    api = cluster.api
    await cluster.serve_one()
    api.watch_answer = error(status(code, "not now", "Some"))
    await cluster.end_watch()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: cluster.source.problem)
    assert cluster.source.problem == f"discovery.kubernetes: shop/workers: status {code}: not now"
    api.put("workers-b", pod("10.0.0.2"))
    api.watch_answer = None
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.find("10.0.0.1-9000", "10.0.0.2-9000")
    assert len(api.lists) == lists
    await cluster.until(lambda: cluster.source.problem is None)


async def test_forgotten_page_lists_again(cluster: Cluster) -> None:
    """410 as the status of an answer to a list is a failure."""
    api = cluster.api
    api.put("workers-a", pod("10.0.0.1"))
    api.answer = error(status(410, "The provided continue parameter is too old", "Expired"))
    await cluster.serve()
    assert cluster.known == []
    assert cluster.source.problem == (
        "discovery.kubernetes: shop/workers: status 410: The provided continue parameter is too old"
    )
    api.answer = None
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.find("10.0.0.1-9000")
    await cluster.until(lambda: cluster.source.problem is None)


async def test_silent_watch_is_given_up(cluster: Cluster) -> None:
    """One that the API server has not ended in time has a dead connection; it continues on a new one."""
    api = cluster.api
    await cluster.serve_one(timeout=5)
    cluster.pass_time(WATCH_TIME + 9.9)
    await cluster.stage.turn()
    assert (api.watching, cluster.source.problem) == (1, None)
    cluster.pass_time(0.2)
    await cluster.until(lambda: len(api.watches) == 2)
    assert len(api.lists) == 1
    assert cluster.lines == [
        "discovery.kubernetes: shop/workers: the watch has not ended within 70 s, so its connection is dead; "
        "the endpoints that are known stay"
    ]
    await cluster.until(lambda: cluster.source.problem is None)


# --- failures


async def test_api_server_is_gone(cluster: Cluster, stage: Stage) -> None:
    """Pauses grow and differ, each problem is logged once and shown in the status, and requests are served."""
    worker = await stage.worker(response(b"still"))
    cluster.api.put("workers-a", pod("127.0.0.1"), ports=[{"name": "http", "port": worker.port}])
    await cluster.serve()
    await cluster.watched()
    cluster.api.is_gone = True
    cluster.api.end()
    await cluster.until(lambda: cluster.source.problem)
    pauses = []
    for _ in range(10):
        cluster.pass_time(cluster.source.next_at - stage.clock.at)
        await cluster.until(lambda: cluster.source.next_at > stage.clock.at)
        pauses.append(cluster.source.next_at - stage.clock.at)
    ceilings = [4, 8, *[LONGEST_PAUSE] * 8]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, ceilings, strict=True)), pauses
    assert len({round(pause, 1) for pause in pauses[4:]}) > 1
    assert cluster.api.refused >= 9
    assert (await stage.ask(get())).body == b"still"
    (report,) = (await balancer_status(stage))["discovery"]
    assert report["endpoints"] == 1
    assert report["problem"].startswith("discovery.kubernetes: shop/workers: ")
    assert f'steelyard_discovery_good{{source="{SOURCE}"}} 0.0' in (await metrics(stage))
    assert [line.removeprefix("discovery.kubernetes: shop/workers: ") for line in cluster.lines] == [
        "the connection broke; the endpoints that are known stay",
        "[Errno 104] Connection reset by peer; the endpoints that are known stay",
    ]


async def test_list_without_an_answer(cluster: Cluster, stage: Stage) -> None:
    """The balancer waits for `timeout`, starts without endpoints, and takes them from the first answer."""
    worker = await stage.worker(response())
    cluster.api.put("workers-a", pod("127.0.0.1"), ports=[{"name": "http", "port": worker.port}])
    cluster.api.is_silent = True
    await cluster.serve(timeout=0.1)
    assert cluster.source.problem == "discovery.kubernetes: shop/workers: no answer within 0.1 s"
    assert (await stage.ask(get())).status == 503
    cluster.api.is_silent = False
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.find(f"127.0.0.1-{worker.port}")
    assert (await stage.ask(get())).status == 200


async def test_watch_without_an_answer(cluster: Cluster) -> None:
    """As a list without one, and the watch is resumed."""
    await cluster.serve_one(timeout=0.1)
    cluster.api.is_silent = True
    cluster.api.end()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: cluster.source.problem)
    assert cluster.source.problem == "discovery.kubernetes: shop/workers: no answer within 0.1 s"
    cluster.api.is_silent = False
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: cluster.source.problem is None)
    assert (cluster.known, len(cluster.api.lists)) == (["10.0.0.1-9000"], 1)


async def test_token_is_replaced(cluster: Cluster) -> None:
    """The file is read for each request, so a token that is replaced in time is not noticed."""
    await cluster.serve_one()
    cluster.api.token = "second"
    cluster.token_file.write_text("second")
    await cluster.end_watch()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.watched()
    assert [request["token"] for request in cluster.api.requests] == ["first", "first", "second"]
    assert len(cluster.api.lists) == 1
    assert cluster.lines == []


async def test_token_is_refused(cluster: Cluster) -> None:
    """401 until the file has a valid token."""
    await cluster.serve_one()
    cluster.api.token = "second"
    await cluster.end_watch()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: cluster.source.problem)
    assert cluster.source.problem == "discovery.kubernetes: shop/workers: status 401: Unauthorized"
    cluster.token_file.write_text("two words")
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: "bearer token" in (cluster.source.problem or ""))
    assert cluster.source.problem == (
        f"discovery.kubernetes.token_file: {cluster.token_file}: has no bearer token"
    )
    assert cluster.known == ["10.0.0.1-9000"]
    cluster.token_file.write_text("second")
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: cluster.source.problem is None)
    assert len(cluster.lines) == 2
    assert len(cluster.api.lists) == 1


async def test_no_pod_is_ready(cluster: Cluster) -> None:
    """The known endpoints stay, as with an empty file or a name without addresses."""
    await cluster.serve_one()
    cluster.api.put("workers-a", pod("10.0.0.1", ready=False, serving=False))
    await cluster.until(lambda: cluster.source.problem)
    message = "discovery.kubernetes: shop/workers: no pod is ready; discovery.kubernetes.allow_empty = true allows that"
    assert (cluster.source.problem, cluster.known) == (message, ["10.0.0.1-9000"])
    cluster.api.put("workers-a")
    cluster.api.delete("workers-a")
    cluster.api.put("workers-a", pod("10.0.0.2"))
    await cluster.find("10.0.0.2-9000")
    assert (cluster.source.problem, cluster.lines) == (
        None,
        [f"{message}; the endpoints that are known stay"],
    )


async def test_no_pod_is_ready_and_that_is_allowed(cluster: Cluster) -> None:
    await cluster.serve_one(allow_empty=True)
    cluster.api.delete("workers-a")
    await cluster.find()
    assert (cluster.source.problem, cluster.lines) == (None, [])


# --- invalid answers

GOOD = endpoint_slice("workers-a", pod("10.0.0.9"))


def changed(path: str, value: Any) -> dict[str, Any]:
    """A list with one slice, with another value at a path; ... removes the key."""
    document: dict[str, Any] = json.loads(json.dumps(slice_list(GOOD)))
    *parents, last = path.split(".")
    inner: Any = document
    for name in parents:
        inner = inner[int(name) if name.isdigit() else name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return document


def as_answer(body: bytes, status: bytes = b"200 OK", *fields: bytes) -> bytes:
    return response(body, *fields, status=status)


ADDRESSES = "items.0.endpoints.0.addresses"
CHANGED: tuple[tuple[str, Any, str], ...] = (
    ("kind", "PodList", ": input should be 'EndpointSliceList', got 'PodList'"),
    ("apiVersion", "discovery.k8s.io/v2", ": input should be"),
    ("metadata", {}, ".resourceVersion: is required"),
    ("items", ..., ": is required"),
    ("items.0.metadata", {}, ".name: is required"),
    ("items.0.addressType", "IPX", ": input should be"),
    ("items.0.endpoints", ..., ": is required"),
    (ADDRESSES, [], ": tuple should"),
    (ADDRESSES, ["a.test"], ".0: must be an IPv4 address, got 'a.test'"),
    (ADDRESSES, ["::1"], ".0: must be an IPv4 address, got '::1'"),
    ("items.0.ports.0.port", 65536, ": input should be less than"),
    ("items.0.endpoints.0.conditions.ready", "perhaps", ": input should be a valid boolean"),
)
"""Where a list has another value, and how the message goes on behind that place."""

BROKEN_LISTS: dict[str, tuple[bytes, str]] = {
    "not JSON": (as_answer(b"<html>"), "invalid answer: invalid JSON: expected value at line 1 column 1"),
    "empty": (as_answer(b""), "invalid answer: invalid JSON"),
    "not UTF-8": (as_answer(b'{"kind": "\xff"}'), "invalid answer: invalid JSON"),
    "nested": (as_answer(b"[" * 100_000), "invalid answer: invalid JSON: recursion limit exceeded"),
    "a number": (as_answer(b"1"), "invalid answer: must be a table"),
    **{
        f"{path}: {value}": (answer(changed(path, value)), f"{path}{message}")
        for path, value, message in CHANGED
    },
    "too long": (as_answer(b" " * (MAX_ANSWER_BYTES + 1)), "an answer is longer than 16 MiB"),
    "too many": (answer(slice_list(*[GOOD] * (MAX_SLICES + 1))), "the Service has more than 5,000 slices"),
    "cut off": (as_answer(b"{}").replace(b": 2", b": 3"), "no answer within 0.5 s"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n\r\n", ""),
    "server error": (as_answer(b"oops", b"500 Internal Server Error"), "status 500"),
    "forbidden": (
        error(status(403, 'endpointslices.discovery.k8s.io is forbidden: User "a\x1b[2J"', "Forbidden")),
        'status 403: endpointslices.discovery.k8s.io is forbidden: User "a\\x1b[2J"',
    ),
    "elsewhere": (as_answer(b"", b"302 Found", b"Location: /other"), "status 302"),
    "compressed": (as_answer(b"\x1f\x8b\x08", b"200 OK", b"Content-Encoding: gzip"), "invalid JSON"),
}


@pytest.mark.parametrize("case", BROKEN_LISTS)
async def test_invalid_list_changes_nothing(cluster: Cluster, case: str) -> None:
    """One line in the log and in the status."""
    sent, message = BROKEN_LISTS[case]
    await cluster.serve_one(timeout=0.5 if case == "cut off" else 10.0)
    cluster.api.answer = sent
    cluster.api.forget()
    await cluster.end_watch()
    for number in range(3, 6):
        cluster.pass_time(LONGEST_PAUSE)
        await cluster.requests(number)
    await cluster.until(lambda: cluster.source.problem)
    problem = cluster.source.problem or ""
    assert problem.startswith(f"discovery.kubernetes: shop/workers: {message}") or message in problem
    assert problem.isprintable()
    assert (cluster.known, len(cluster.lines)) == (["10.0.0.1-9000"], 1)
    cluster.api.answer = None
    cluster.api.put("workers-b", pod("10.0.0.2"))
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.find("10.0.0.1-9000", "10.0.0.2-9000")
    assert (cluster.source.problem, len(cluster.lines)) == (None, 1)


def event(kind: str, found: Any) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def of_kind(found: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {**found["metadata"], "resourceVersion": "900"}
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        **found,
        "metadata": metadata,
        **more,
    }


BROKEN_EVENTS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"<html>\n", "invalid answer: invalid JSON: expected value"),
    "empty line": (b"\n", "invalid answer: invalid JSON"),
    "unknown type": (event("RENAMED", of_kind(GOOD)), "type: input should be 'ADDED', 'MODIFIED'"),
    "without an object": (b'{"type": "ADDED"}\n', "object: is required"),
    "another kind": (
        event("ADDED", of_kind(GOOD, kind="Pod")),
        "kind: input should be 'EndpointSlice', got 'Pod'",
    ),
    "without a version": (
        event("ADDED", of_kind(GOOD, metadata={"name": "a"})),
        "metadata.resourceVersion: is req",
    ),
    "a broken slice": (event("ADDED", of_kind(GOOD, addressType=5)), "addressType: input should be"),
    "a broken bookmark": (event("BOOKMARK", {"kind": "EndpointSlice"}), "apiVersion: is required"),
    "an error": (event("ERROR", status(500, "etcd is gone", "InternalError")), "status 500: etcd is gone"),
    "an unknown error": (event("ERROR", {"kind": "Pod"}), "kind: input should be 'Status'"),
    "too long": (b" " * (MAX_ANSWER_BYTES + 1), "an event is longer than 16 MiB"),
}


@pytest.mark.parametrize("case", BROKEN_EVENTS)
async def test_invalid_event_changes_nothing(cluster: Cluster, case: str) -> None:
    """The slices are listed again, because an event may be lost."""
    sent, message = BROKEN_EVENTS[case]
    await cluster.serve_one()
    cluster.api.send(sent)
    await cluster.until(lambda: cluster.source.problem)
    problem = cluster.source.problem or ""
    assert problem.startswith("discovery.kubernetes: shop/workers: ")
    assert message in problem
    assert (cluster.known, len(cluster.lines)) == (["10.0.0.1-9000"], 1)
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: len(cluster.api.watches) == 2 and cluster.source.problem is None)
    assert (len(cluster.api.lists), len(cluster.lines)) == (2, 1)


async def test_incomplete_event_is_ignored(cluster: Cluster) -> None:
    """The connection breaks within it; the watch continues before it."""
    await cluster.serve_one()
    cluster.api.send(event("ADDED", of_kind(GOOD))[:-20])
    await cluster.stage.turn()
    cluster.api.is_gone = True
    cluster.api.end()
    await cluster.until(lambda: cluster.source.problem)
    cluster.api.is_gone = False
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.watched()
    assert cluster.known == ["10.0.0.1-9000"]


# --- configuration


async def test_reload(cluster: Cluster, stage: Stage) -> None:
    """A source that stays keeps its watch, a changed one lists again, a removed one removes its endpoints."""
    await cluster.serve_one()
    first = cluster.source
    await stage.reload(retries=0)
    assert (cluster.source, cluster.api.watching) == (first, 1)
    await stage.reload(discovery={"kubernetes": {**cluster.keys, "weight": 3}})
    assert cluster.known == ["10.0.0.1-9000"]
    assert stage.state("10.0.0.1-9000").weight == 3
    await cluster.until(lambda: cluster.api.watching == 1)
    with pytest.raises(ConfigError) as caught:
        await stage.reload(discovery={"kubernetes": {**cluster.keys, "token_file": "/absent"}})
    assert (
        str(caught.value) == "discovery.kubernetes.token_file: cannot read /absent: No such file or directory"
    )
    assert cluster.known == ["10.0.0.1-9000"]
    endpoint = {"id": "a", "address": "http://127.0.0.1:1"}
    await stage.reload(discovery={}, endpoints=[endpoint])
    assert cluster.known == ["a"]
    await stage.eventually(lambda: cluster.api.watching == 0)


@pytest.mark.parametrize("key", ["token_file", "ca_file"])
async def test_file_of_credentials_in_a_process_that_joins_others(
    cluster: Cluster, stage: Stage, tmp_path: Path, key: str
) -> None:
    """One that cannot be read is a problem of the source, which holds what is known until it has an answer."""
    await cluster.serve_one()
    stage.cluster.process.joins = True
    absent = tmp_path / "absent"
    server = str(cluster.keys["server"]).replace("http:", "https:" if key == "ca_file" else "http:")
    keys = {**cluster.keys, "server": server, key: str(absent)}
    await stage.reload(discovery={"kubernetes": keys})
    problem = f"discovery.kubernetes.{key}: cannot read {absent}: No such file or directory"
    assert (cluster.known, cluster.source.problem) == (["10.0.0.1-9000"], problem)
    if key == "token_file":
        absent.write_text("first\n")
        cluster.pass_time(LONGEST_PAUSE)
        await cluster.until(lambda: cluster.source.problem is None)


async def test_refused_reload(cluster: Cluster, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new source is listed and watched before the reload is refused; its watch ends, and the old one goes on."""
    await cluster.serve_one()
    first = cluster.source

    def refuse(*_: object) -> None:
        raise ConfigError("late")

    monkeypatch.setattr(stage.running, "_commit_prepared", refuse)
    with pytest.raises(ConfigError, match=r"^late$"):
        await stage.reload(discovery={"kubernetes": {**cluster.keys, "weight": 3}})
    assert len(cluster.api.lists) == 2
    await stage.eventually(lambda: len(stage.control_plane.discovery._tasks) == 1)
    await stage.eventually(lambda: cluster.api.watching == 1)
    assert (cluster.source, stage.state("10.0.0.1-9000").weight) == (first, 1)


async def test_named_pool(cluster: Cluster, stage: Stage) -> None:
    """A pool watches a Service of its own; the watch ends when the source is replaced, and with the pool."""
    worker = await stage.worker(response(b"api"))
    cluster.api.put("workers-a", pod("127.0.0.1"), ports=[{"name": "http", "port": worker.port}])
    discovery = await cluster.start()
    routes = [{"path": "/api", "cluster": "api"}]
    await stage.serve(
        await stage.worker(response(b"default")),
        routes=routes,
        clusters={"api": {"discovery": discovery}},
    )
    assert (await stage.ask(get(b"/api"))).body == b"api"
    assert (await stage.ask(get(b"/"))).body == b"default"
    await stage.eventually(lambda: cluster.api.watching == 1)
    await stage.reload(clusters={"api": {"discovery": {"kubernetes": {**cluster.keys, "weight": 2}}}})
    await stage.eventually(lambda: len(cluster.api.watches) == 2 and cluster.api.watching == 1)
    await stage.reload(routes=[], clusters={})
    await stage.eventually(lambda: cluster.api.watching == 0)


async def test_stop_during_a_list(cluster: Cluster, stage: Stage) -> None:
    """The balancer does not wait for the answer."""
    await cluster.serve_one(timeout=60)
    cluster.api.is_silent = True
    cluster.api.end()
    cluster.pass_time(LONGEST_PAUSE)
    await cluster.until(lambda: len(cluster.api.requests) == 3)
    async with asyncio.timeout(5):
        await stage.close()
    stage.server = None


async def test_tls(cluster: Cluster, stage: Stage, tmp_path: Path) -> None:
    """The API server's certificate is verified by `ca_file`."""
    shelf = Shelf(tmp_path)
    cluster.server.tls = shelf.worker("127.0.0.1")
    cluster.api.put("workers-a", pod("10.0.0.1"))
    await cluster.serve(ca_file=str(shelf.ca))
    assert (cluster.source.problem, cluster.known) == (None, ["10.0.0.1-9000"])
    await stage.reload(discovery={"kubernetes": {**cluster.keys, "ca_file": None, "weight": 2}})
    await cluster.until(lambda: cluster.source.problem)
    assert "certificate refused: " in (cluster.source.problem or "")
    assert cluster.known == ["10.0.0.1-9000"]


async def test_https_verifies_the_name_of_the_service(cluster: Cluster, stage: Stage, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(b"secure"), tls=shelf.worker("workers.shop.svc"))
    cluster.api.put("workers-a", pod("127.0.0.1"), ports=[{"port": worker.port}])
    discovery = await cluster.start(scheme="https")
    await stage.serve(discovery=discovery, upstream_tls={"ca": str(shelf.ca)})
    assert (await stage.ask(get())).body == b"secure"
