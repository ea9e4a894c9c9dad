"""Client of a running balancer's admin interface: over its Unix socket if there is one, else over HTTP with the token;
and the options --url and --token of the commands that use it.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import click

from balancer.control.admin.socket_path import found_socket, running
from balancer.syntax.printable import one_line, printable

UNIX_SCHEME = "unix:"

TIMEOUT = 10.0
"""Timeout of the response in seconds."""


MAX_RESPONSE_BYTES = 64 << 20
"""Size limit of the response in bytes."""


STATUS = "/-/status"


class AdminError(click.ClickException):
    """An admin request failed; the message is one line."""


class Unreachable(AdminError):
    """There is no response, or it is not from an admin interface."""

    def format_message(self) -> str:
        return f"--url: {self.message}"


class AdminClient:
    """Client of the admin interface at `url`: the URL that the balancer serves, or unix:/path of its admin socket. Its
    documents are about the cluster of that name. Without a URL it is found at the first request.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        cluster: str | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self._given = url
        self._cluster = cluster
        self._token = token
        self._timeout = timeout

    @cached_property
    def url(self) -> str:
        """The URL that was given, or the default. Raises `click.UsageError`."""
        return (default_url() if self._given is None else self._given).rstrip("/")

    @cached_property
    def path(self) -> str | None:
        """The path of the admin socket, None without one."""
        path = self.url.removeprefix(UNIX_SCHEME)
        return found_socket(self.url) if path == self.url else path

    def document(self, method: str, target: str, body: Any = None) -> Any:
        """Return the JSON document of the response. Raises `AdminError` if it is an error or not JSON."""
        status, text = self.request(method, target_of(target, self._cluster), body)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            document = None
            if 200 <= status < 300:
                raise Unreachable(one_line(f"no answer from {self.url}: no JSON: {error}")) from None
        if 200 <= status < 300:
            return document
        if isinstance(document, dict) and isinstance(document.get("error"), str):
            raise AdminError(one_line(document["error"]))
        if status == 404 and self.path is not None:
            if self.request("GET", STATUS)[0] == 200:
                raise AdminError(
                    one_line(f"{self.url} has no {target.partition('?')[0]}, as a sidecar has none")
                )
            raise Unreachable(
                f"the admin socket {self.path} needs the admin.token of its balancer; see --token"
            )
        if status == 404:
            raise Unreachable(
                f"no control plane at {self.url}: its admin socket was not found on this machine, and it takes "
                "admin requests elsewhere only with its token; see --token"
            )
        raise Unreachable(f"{self.url} answers {status}")

    def request(self, method: str, target: str, body: Any = None) -> tuple[int, bytes]:
        """Send a request for `target` with `body` as JSON; return status and body of the response. Raises
        `Unreachable`.
        """
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection = self._connection()
            try:
                connection.request(method, target, data, headers)
                answer = connection.getresponse()
                text = answer.read(MAX_RESPONSE_BYTES + 1)
                if len(text) > MAX_RESPONSE_BYTES:
                    raise ValueError(f"more than {MAX_RESPONSE_BYTES >> 20} MiB")
                return answer.status, text
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(one_line(f"no answer from {self.url}: {problem}")) from None

    def show(self, lines: Callable[[], Iterable[str]]) -> None:
        """Print the lines that `lines` makes of a response, which may be another program's."""
        try:
            made = [*lines()]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Unreachable(f"{self.url} is not a balancer") from None
        for line in made:
            click.echo(printable(line).replace("\n", " "))

    def _connection(self) -> http.client.HTTPConnection:
        if self.path is not None:
            return UnixConnection(self.path, self._timeout)
        parts = urlsplit(self.url)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self._timeout, context=context
            )
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError("must be http://host:port, https://host:port or unix:/path")
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self._timeout)


class UnixConnection(http.client.HTTPConnection):
    """HTTP connection over the Unix socket at `path`."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def target_of(path: str, cluster: str | None) -> str:
    """Return the target of an admin request about a cluster; None is the default one."""
    if cluster is None:
        return path
    return f"{path}{'&' if '?' in path else '?'}cluster={quote(cluster, safe='')}"


Command = TypeVar("Command", bound=Callable[..., Any])


def default_url() -> str:
    """Return the URL of this machine's balancer: the admin socket named in the environment, else $PORT or 8080, or the
    only balancer that runs for this user. Raises `click.UsageError` if there are several, none of them there.
    """
    path = os.environ.get("BALANCER_ADMIN__SOCKET", "")
    if path.startswith("/"):
        return f"{UNIX_SCHEME}{path}"
    port = os.environ.get("PORT") or "8080"
    found = running()
    if not found or port in found:
        return f"http://127.0.0.1:{port}"
    if len(found) > 1:
        ports = ", ".join(sorted(found))
        raise click.UsageError(f"--url: say which balancer, http://127.0.0.1:PORT with one of {ports}")
    return UNIX_SCHEME + found.popitem()[1]


def connection_options(command: Command) -> Command:
    url = click.option(
        "--url",
        metavar="URL",
        help="Where it serves (default http://127.0.0.1:8080, or $PORT, or the only one of this user), or "
        "unix:/path of its admin socket.",
    )
    token = click.option(
        "--token",
        envvar="BALANCER_ADMIN__TOKEN",
        help="Its admin.token; also from the environment.",
    )
    return url(token(command))
