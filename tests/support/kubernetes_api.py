"""API server of Kubernetes on loopback, for the EndpointSlices of one Service: list in pages, watch, bookmarks, faults.

Its answers have the form of those that kube-apiserver 1.33.5 gave. It is the script of a `ScriptedWorker`, so it parses
HTTP itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.wire import Wire, response

Document = dict[str, Any]

PATH = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
SELECTOR = "kubernetes.io/service-name=workers"
HTTP = {"name": "http", "protocol": "TCP", "port": 9000}
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def pod(
    *addresses: str,
    ready: bool | None = True,
    serving: bool | None = True,
    terminating: bool | None = False,
    zone: str | None = "eu-1a",
    uid: str | None = None,
) -> Document:
    """An endpoint of a slice; a condition that is None is absent."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    found: Document = {
        "addresses": list(addresses),
        "conditions": {name: value for name, value in conditions.items() if value is not None},
        "nodeName": "node-1",
    }
    if zone is not None:
        found["zone"] = zone
    if uid is not None:
        found["targetRef"] = {"kind": "Pod", "namespace": "shop", "name": uid, "uid": uid}
    return found


def leaving(*addresses: str, **more: Any) -> Document:
    """A pod that terminates and still serves."""
    return pod(*addresses, ready=False, serving=True, terminating=True, **more)


def endpoint_slice(
    name: str, *pods: Document, ports: list[Document] | None = None, family: str = "IPv4"
) -> Document:
    """A slice; without pods or ports it has null, as the API server writes it."""
    labels = {"kubernetes.io/service-name": "workers"}
    return {
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "addressType": family,
        "endpoints": list(pods) or None,
        "ports": [HTTP] if ports is None else ports or None,
    }


def status(code: int, message: str, reason: str) -> Document:
    """The object that reports an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


class ApiServer:
    """State and faults of the API server.

    `token` must be sent. `answer`: sent instead of an answer to a list, `watch_answer`: to a watch; `is_silent`: none
    is sent; `is_gone`: connections are reset, which `refused` counts. `most`: slices in a page. `requests`: the queries
    of all requests, with their tokens.
    """

    def __init__(self) -> None:
        self.slices: dict[str, Document] = {}
        self.version = 100
        self.token = "first"
        self.answer: bytes | None = None
        self.watch_answer: bytes | None = None
        self.is_silent = self.is_gone = False
        self.refused = 0
        self.most = 1000
        self.requests: list[dict[str, str]] = []
        self._forgotten = 0  # versions up to this one
        self._history: list[tuple[int, Document]] = []
        self._watches: list[asyncio.Queue[bytes | None]] = []

    @property
    def lists(self) -> list[dict[str, str]]:
        return [request for request in self.requests if "watch" not in request]

    @property
    def watches(self) -> list[dict[str, str]]:
        return [request for request in self.requests if "watch" in request]

    @property
    def watching(self) -> int:
        """Number of open watches."""
        return len(self._watches)

    # --- changes

    def put(self, name: str, *pods: Document, **more: Any) -> None:
        """Add or change a slice."""
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = endpoint_slice(name, *pods, **more)
        self._happens(kind, self.slices[name])

    def delete(self, name: str) -> None:
        self._happens("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        """Send the version, which a change of another Service has raised."""
        self.version += 1
        bookmark = {
            "metadata": {"resourceVersion": str(self.version), "creationTimestamp": None},
            "addressType": "",
            "endpoints": None,
            "ports": None,
        }
        self.send(self._event("BOOKMARK", bookmark))

    def forget(self) -> None:
        """Forget all earlier versions, as etcd does after five minutes."""
        self.version += 1
        self._forgotten = self.version

    def _happens(self, kind: str, changed: Document) -> None:
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        event = self._event(kind, changed)
        self._history.append((self.version, event))
        self.send(event)

    @staticmethod
    def _event(kind: str, changed: Document) -> Document:
        head = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1"}
        return {"type": kind, "object": {**head, **changed}}

    # --- open watches

    def send(self, event: Document | bytes) -> None:
        """Send an event, or bytes, to all watches."""
        line = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
        for watch in self._watches:
            watch.put_nowait(line)

    def end(self) -> None:
        """End all watches, as after `timeoutSeconds`."""
        for watch in self._watches:
            watch.put_nowait(None)

    # --- connections

    async def script(self, wire: Wire) -> None:
        """Answer the requests of one connection."""
        if self.is_gone:
            self.refused += 1
            wire.reset()
            return
        wire.patience = 3600.0  # a watch of a real program lasts
        while True:
            head = await wire.head()
            method, target, _ = head.line.decode().split(" ")
            url = urlsplit(target)
            query = dict(parse_qsl(url.query))
            authorization = (head.value(b"Authorization") or b"").decode()
            assert (method, url.path, query["labelSelector"]) == ("GET", PATH, SELECTOR), head.line
            self.requests.append(query | {"token": authorization.removeprefix("Bearer ")})
            if self.is_silent:
                await wire.closed()
                return
            if authorization != f"Bearer {self.token}":
                await self._refuse(wire, 401, "Unauthorized", "Unauthorized")
            elif "watch" in query and self.watch_answer is not None:
                await wire.send(self.watch_answer)
            elif "watch" in query:
                await self._watch(wire, int(query["resourceVersion"]))
                return
            else:
                await wire.send(self.answer or self._page(query))

    def _page(self, query: dict[str, str]) -> bytes:
        version, _, last = query.get("continue", f"{self.version}:").partition(":")
        if int(version) < self._forgotten:
            return error(status(410, "The provided continue parameter is too old", "Expired"))
        names = sorted(name for name in self.slices if name > last)
        page = names[: min(self.most, int(query["limit"]))]
        metadata = {"resourceVersion": version}
        if page != names:
            metadata["continue"] = f"{version}:{page[-1]}"
        return answer(slice_list(*(self.slices[name] for name in page), metadata=metadata))

    async def _watch(self, wire: Wire, version: int) -> None:
        await wire.send(CHUNKED)
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        if version < self._forgotten:
            message = f"too old resource version: {version} ({self._forgotten})"
            events.put_nowait(
                json.dumps({"type": "ERROR", "object": status(410, message, "Expired")}).encode() + b"\n"
            )
            events.put_nowait(None)
        for since, event in self._history:
            if since > version:
                events.put_nowait(json.dumps(event).encode() + b"\n")
        self._watches.append(events)
        closed = asyncio.ensure_future(wire.closed())
        closed.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (line := await events.get()) is not None:
                await wire.send(b"%x\r\n%b\r\n" % (len(line), line))
            if self.is_gone:
                wire.reset()
            else:
                await wire.send(b"0\r\n\r\n")
        finally:
            closed.cancel()
            self._watches.remove(events)

    async def _refuse(self, wire: Wire, code: int, message: str, reason: str) -> None:
        await wire.send(error(status(code, message, reason)))


def slice_list(*slices: Document, metadata: Document | None = None) -> Document:
    return {
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": metadata or {"resourceVersion": "100"},
        "items": list(slices),
    }


def answer(document: Document) -> bytes:
    return response(json.dumps(document).encode() + b"\n", b"Content-Type: application/json")


def error(document: Document) -> bytes:
    return response(json.dumps(document).encode(), status=f"{document['code']} {document['reason']}".encode())
