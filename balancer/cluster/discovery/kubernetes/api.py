"""Requests to the API server for the EndpointSlices of a Service: a list in pages, and a watch.

Every failure is raised as an `ApiFailed` of one line. Only this module uses the HTTP client. What the configuration
does not give of the access comes from the pod that the balancer runs in: variables of its environment and the files of
its service account.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    StreamReader,
    TCPConnector,
)
from pydantic import BaseModel, ValidationError

from balancer.cluster.discovery.kubernetes.endpoints import EndpointSlice, SliceList, Status
from balancer.config.documents import read_text
from balancer.config.problems import ConfigError, first_problem, in_file
from balancer.config.schema.discovery import KubernetesDiscovery
from balancer.errors import WorkerUntrusted
from balancer.syntax.printable import one_line
from balancer.upstream.library.aiohttp_client import error_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Origin of the API server, namespace, and files of credentials. None: no token; the system's authorities."""

    server: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None

    def token(self) -> str | None:
        """Read the bearer token, which the kubelet replaces before it expires. Raises `ConfigError`."""
        if self.token_file is None:
            return None
        token = _read("token_file", self.token_file)
        if not (token and token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(f"discovery.kubernetes.token_file: {self.token_file}: has no bearer token")
        return token

    def tls(self) -> ssl.SSLContext | None:
        """Create the TLS context of a connection, None without TLS. Raises `ConfigError`."""
        if not self.server.startswith("https:"):
            return None
        # The default context of Python 3.13 refuses authorities without key identifiers, as some clusters have them.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca_file is None:
            context.load_default_certs()
            return context
        try:
            context.load_verify_locations(cadata=_read("ca_file", self.ca_file))
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"discovery.kubernetes.ca_file: {self.ca_file}: has no certificate in PEM"
            ) from None
        return context


def access_of(
    config: KubernetesDiscovery,
    variables: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    *,
    may_fail: bool = False,
) -> ClusterAccess:
    """Return the access that is configured, completed by that of the pod. Raises `ConfigError` for what is missing, of
    credentials unless they `may_fail`: they are read again for each request."""
    server, namespace = config.server, config.namespace
    token_file, ca_file = config.token_file, config.ca_file
    if server is None:
        server = _server_of_cluster(variables)
        token_file, ca_file = token_file or service_account / "token", ca_file or service_account / "ca.crt"
    access = ClusterAccess(
        server, namespace or _read("namespace", service_account / "namespace"), token_file, ca_file
    )
    if not may_fail:
        access.token()
        access.tls()
    return access


def _server_of_cluster(variables: Mapping[str, str]) -> str:
    host, port = variables.get("KUBERNETES_SERVICE_HOST"), variables.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "discovery.kubernetes.server: is required outside a pod, "
            "where KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _read(key: str, path: Path) -> str:
    with in_file(f"discovery.kubernetes.{key}", path):
        return read_text(path, is_plain=True).strip()


PAGE = 100
"""Maximum number of slices in one answer to a list; a slice has up to 100 endpoints by default, at most 1,000."""

MAX_SLICES = 5000
"""Maximum number of slices of a Service."""

MAX_ANSWER_BYTES = 16 << 20
"""Maximum bytes of an answer to a list, and of an event of a watch."""

LONGEST_MESSAGE = 300
"""Maximum characters of a message of the API server."""

EXPIRED = 410
"""Code of the answer that a resource version or a page is older than what the API server keeps."""


Object = TypeVar("Object", bound=BaseModel)


class ApiFailed(Exception):
    """No answer: the connection failed or is silent. A watch can be resumed."""


class ApiRefused(ApiFailed):
    """An error or an invalid answer. `code`: HTTP status, 0: invalid."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@asynccontextmanager
async def opened(access: ClusterAccess, service: str, timeout: float) -> AsyncIterator[SliceApi]:
    """Open a client for the slices of `service`. Raises `ConfigError` for a faulty file of certificates."""
    tls = await asyncio.to_thread(access.tls)  # reading all authorities of the system takes 20 ms
    connector = TCPConnector(ssl=tls or True, force_close=True)
    async with ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        timeout=ClientTimeout(total=None, sock_connect=None),
    ) as session:
        yield SliceApi(session, access, service, timeout)


class SliceApi:
    """Client for the slices of `service`. `timeout`: seconds for a list, and for the head of the answer to a watch."""

    def __init__(self, session: ClientSession, access: ClusterAccess, service: str, timeout: float) -> None:
        self._session = session
        self._access = access
        self._timeout = timeout
        self._url = f"{access.server}/apis/discovery.k8s.io/v1/namespaces/{access.namespace}/endpointslices"
        self._query = {"labelSelector": f"kubernetes.io/service-name={service}"}

    async def list_slices(self) -> tuple[list[EndpointSlice], str]:
        """Return all slices and their resource version. Raises `ApiFailed`, and `ConfigError` for the token's file."""
        slices: list[EndpointSlice] = []
        query = {"limit": str(PAGE)}
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    async with self._get(query) as response:
                        page = valid(SliceList, await _body(response))
                    slices += page.items
                    if len(slices) > MAX_SLICES:
                        raise ApiRefused(f"the Service has more than {MAX_SLICES:,} slices")
                    if not page.next_page:
                        return slices, page.version
                    query["continue"] = page.next_page
        except TimeoutError:
            raise ApiFailed(f"no answer within {self._timeout:g} s") from None

    @asynccontextmanager
    async def watch(self, version: str, seconds: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Watch the changes since `version`; yields an iterator over the lines of the answer.

        The API server ends it after `seconds`. Raises as `list_slices` does.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with self._get(query) as response, aclosing(_lines(response.content)) as lines:
            yield lines

    @asynccontextmanager
    async def _get(self, query: dict[str, str]) -> AsyncIterator[ClientResponse]:
        """Send a request and yield the response; translates all errors, also those of reading it."""
        try:
            async with await self._response(query) as response:
                yield response
        except (ClientPayloadError, ServerDisconnectedError):
            raise ApiFailed("the connection broke") from None
        except (ClientError, OSError) as error:
            failure = error_of(error)
            raise ApiFailed(
                failure.inside if isinstance(failure, WorkerUntrusted) else str(failure)
            ) from None

    async def _response(self, query: dict[str, str]) -> ClientResponse:
        """Return the response to a request, without its body, if its status is 200."""
        fields = {"Accept": "application/json", "Accept-Encoding": "identity"}
        token = self._access.token()
        if token is not None:
            fields["Authorization"] = f"Bearer {token}"
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._session.get(
                    self._url, params=self._query | query, headers=fields, allow_redirects=False
                )
                if response.status == 200:
                    return response
                async with response:
                    raise refusal(response.status, await _body(response))
        except TimeoutError:
            raise ApiFailed(f"no answer within {self._timeout:g} s") from None


async def _body(response: ClientResponse) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise ApiRefused(f"an answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


async def _lines(content: StreamReader) -> AsyncGenerator[bytes]:
    """Yield complete lines. Raises `ApiRefused` for one that is too long."""
    rest = bytearray()
    async for part in content.iter_any():
        *lines, end = part.split(b"\n")
        for line in lines:
            yield bytes(rest) + line
            rest.clear()
        rest += end
        if len(rest) > MAX_ANSWER_BYTES:
            raise ApiRefused(f"an event is longer than {MAX_ANSWER_BYTES >> 20} MiB")
    if rest.strip():
        raise ApiRefused("the last event of a watch is incomplete")


def valid(kind: type[Object], document: bytes | dict[str, Any]) -> Object:
    """Return the object in a document. Raises `ApiRefused`."""
    try:
        if isinstance(document, bytes):
            return kind.model_validate_json(document)
        return kind.model_validate(document)
    except ValidationError as error:
        raise ApiRefused(f"invalid answer: {one_line(first_problem(error, kind))}") from None


def refusal(code: int, document: bytes | dict[str, Any]) -> ApiRefused:
    """Return the error for a `Status`, or for the body of an answer with a status of failure, which may be one."""
    try:
        status = valid(Status, document)
    except ApiRefused as error:
        return ApiRefused(f"status {code}", code) if code else error
    code = status.code or code
    return ApiRefused(f"status {code}: {one_line(status.message[:LONGEST_MESSAGE])}", code)
