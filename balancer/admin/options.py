"""The options --url and --token of the commands that talk to a running unit, and its client as they use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from balancer.admin.client import UNIX_SCHEME, AdminClient, AdminError, Unreachable
from balancer.printable import printable

Command = TypeVar("Command", bound=Callable[..., Any])


def default_unit() -> str:
    """The unit of this machine: at the control socket that the environment names, else on $PORT or 8080."""
    path = os.environ.get("BALANCER_CONTROL__SOCKET", "")
    return (
        f"{UNIX_SCHEME}{path}"
        if path.startswith("/")
        else f"http://127.0.0.1:{os.environ.get('PORT') or 8080}"
    )


def unit_options(command: Command) -> Command:
    """Add --url and --token to a command."""
    url = click.option(
        "--url",
        default=default_unit,
        metavar="URL",
        help="Where it serves (default http://127.0.0.1:8080, or $PORT), or unix:/path of its control socket.",
    )
    token = click.option(
        "--token", envvar="BALANCER_CONTROL__TOKEN", help="Its control.token; also from the environment."
    )
    return url(token(command))


class BalancerClient:
    """A running unit. Raises `click.ClickException` with one line for whatever goes wrong."""

    def __init__(self, url: str, token: str | None) -> None:
        self._client = AdminClient(url, token)

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        """The JSON document of its answer."""
        try:
            return self._client.document(method, target, body)
        except Unreachable as error:
            raise click.ClickException(f"--url: {error}") from None
        except AdminError as error:
            raise click.ClickException(str(error)) from None

    def show(self, lines: Callable[[], Iterable[str]]) -> None:
        """Print what `lines` makes of an answer, which may be no unit's."""
        try:
            made = [*lines()]
        except (KeyError, TypeError, ValueError, AttributeError):
            problem = f"--url: {self._client.url} does not answer as a unit does"
            raise click.ClickException(problem) from None
        for line in made:
            click.echo(printable(line).replace("\n", " "))

    def text(self, method: str, target: str, body: Any = None) -> tuple[int, str]:
        """Status and text of its answer."""
        try:
            status, text = self._client.request(method, target, body)
        except Unreachable as error:
            raise click.ClickException(f"--url: {error}") from None
        return status, text.decode(errors="replace")
