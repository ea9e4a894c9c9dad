"""The options --url and --token of the commands that talk to a running balancer, and their client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from balancer.control.admin.client import UNIX_SCHEME, AdminClient, AdminError, Unreachable, target_of
from balancer.control.admin.socket_path import running
from balancer.syntax.printable import printable

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
        default=default_url,
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


class BalancerClient:
    """Admin client for click commands; every error is a `click.ClickException` with one line. Its requests are about
    the cluster of that name.
    """

    def __init__(self, url: str, token: str | None, cluster: str | None = None) -> None:
        self._client = AdminClient(url, token)
        self._cluster = cluster

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        """Return the JSON document of the response."""
        try:
            return self._client.document(method, target_of(target, self._cluster), body)
        except Unreachable as error:
            raise click.ClickException(f"--url: {error}") from None
        except AdminError as error:
            raise click.ClickException(str(error)) from None

    def show(self, lines: Callable[[], Iterable[str]]) -> None:
        """Print the lines that `lines` makes of a response, which may be another program's."""
        try:
            made = [*lines()]
        except (KeyError, TypeError, ValueError, AttributeError):
            problem = f"--url: {self._client.url} is not a balancer"
            raise click.ClickException(problem) from None
        for line in made:
            click.echo(printable(line).replace("\n", " "))

    def text(self, method: str, target: str, body: Any = None) -> tuple[int, str]:
        """Return status and text of the response."""
        try:
            status, text = self._client.request(method, target, body)
        except Unreachable as error:
            raise click.ClickException(f"--url: {error}") from None
        return status, text.decode(errors="replace")
