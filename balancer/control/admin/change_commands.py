"""`balancer endpoints …` and `balancer split`: list and change endpoints and splits of a running balancer over its
admin interface."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import quote

import click

from balancer.control.admin.client import AdminClient, connection_options
from balancer.control.admin.health import panic_text
from balancer.control.admin.status_command import split_lines

PATH = "/-/endpoints"


def number(text: str) -> float:
    """Return the number in a text, for which float() takes also 1_0. Raises ValueError."""
    with suppress(ValueError):
        if "_" not in text:
            return float(text)
    raise ValueError(f"'{text:.60}' is not a number")


EPILOG = """\b
Examples:
  balancer endpoints list
  balancer endpoints add emea-3 http://10.0.0.7:8080 --region emea
  balancer endpoints drain emea-1
  balancer endpoints ready emea-1
  balancer endpoints weight emea-2 0.5
  balancer endpoints --url https://balancer.example.org --token … remove emea-1
"""


@click.group(
    "endpoints",
    epilog=EPILOG,
    short_help="List and change the endpoints of a running balancer.",
)
@connection_options
@click.option("--cluster", metavar="NAME", help="Named cluster; default: that of the top level.")
@click.pass_context
def endpoints(context: click.Context, url: str | None, token: str | None, cluster: str | None) -> None:
    """List and change the endpoints of a running balancer; no request is lost."""
    context.obj = AdminClient(url, token, cluster)


@endpoints.command("list", short_help="List the endpoints with their state.")
@click.pass_obj
def list_command(balancer: AdminClient) -> None:
    """List each endpoint with its condition, weight, requests in flight and source."""
    found = balancer.document("GET", PATH)
    balancer.show(
        lambda: [
            *filter(None, (panic_text(found),)),
            *lines_of(found["endpoints"]),
            *(
                f"{each['id']:<24} leaving     in flight {each['in_flight']:<5} {each['address']}"
                for each in found["leaving"]
            ),
        ]
    )


def lines_of(endpoints: list[dict[str, Any]]) -> list[str]:
    """Format endpoints as lines with aligned columns."""
    width = max((len(each["condition_text"]) for each in endpoints), default=0)
    return [line_of(each, width) for each in endpoints]


def line_of(each: dict[str, Any], width: int = 0) -> str:
    """Format one endpoint as a line; `width` is that of the condition."""
    text = each["condition_text"].ljust(max(11, width))
    return (
        f"{each['id']:<24} {text} in flight {each['in_flight']:<5} weight {each['weight']:<6g} "
        f"{each['region']:<10} {each['address']} ({each['source']})"
    )


@endpoints.command("add", short_help="Add an endpoint.")
@click.argument("name")
@click.argument("address")
@click.option("--region", help="Default: default.")
@click.option("--host", metavar="NAME", help="Host that it gets, or client, or address.")
@click.option("--weight", type=number, help="Weight relative to the other endpoints; default: 1.")
@click.option("--priority", type=int, help="Level of a backup; default: 0, not a backup.")
@click.option("--max-in-flight", type=int, help="Limit of requests in flight; default: none.")
@click.pass_obj
def add_command(balancer: AdminClient, /, name: str, address: str, **options: Any) -> None:
    """Add an endpoint; it stays until it is removed or the balancer stops."""
    given = {key: value for key, value in options.items() if value is not None}
    found = balancer.document("POST", PATH, {"id": name, "address": address, **given})
    balancer.show(lambda: [line_of(found)])


@endpoints.command("remove")
@click.argument("name")
@click.pass_obj
def remove_command(balancer: AdminClient, name: str) -> None:
    """Remove an endpoint; its requests in flight finish."""
    found = balancer.document("DELETE", path_of(name))
    balancer.show(
        lambda: [
            f"{found['id']:<24} removed     in flight {found['in_flight']}",
            *([f"{found['id']:<24} goes on     from {found['source']}"] if "source" in found else ()),
        ]
    )


def path_of(name: str) -> str:
    """Return the path of an endpoint. Raises `click.UsageError`."""
    if not name:
        raise click.UsageError("NAME must not be empty")
    return f"{PATH}/{quote(name, safe='')}"


def change(balancer: AdminClient, name: str, **keys: Any) -> None:
    """Send the change of one endpoint and print the result."""
    found = balancer.document("PATCH", path_of(name), keys)
    balancer.show(lambda: [line_of(found)])


def state_command(state: str, text: str, short_help: str | None = None) -> None:
    """Add the command that sets an endpoint to this state."""

    @endpoints.command(state, help=text, short_help=short_help)
    @click.argument("name")
    @click.pass_obj
    def command(balancer: AdminClient, name: str) -> None:
        change(balancer, name, state=state)


state_command("drain", "Drain an endpoint: no new requests; those in flight finish.")
state_command(
    "maintenance",
    "Set an endpoint to maintenance: like drain, and its idle connections are closed at once.",
    "Drain an endpoint and close its idle connections.",
)
state_command("ready", "Set an endpoint to ready: it gets requests again.")


@endpoints.command("weight", short_help="Set an endpoint's weight until the next reload.")
@click.argument("name")
@click.argument("weight", type=number)
@click.pass_obj
def weight_command(balancer: AdminClient, name: str, weight: float) -> None:
    """Set an endpoint's weight relative to the others, until the next reload.

    An endpoint that was added by command keeps it.
    """
    change(balancer, name, weight=weight)


SPLITS = "/-/splits"


@click.command("split", short_help="Show and change how routes are split between clusters.")
@click.argument("weights", nargs=-1, metavar="[CLUSTER=WEIGHT]...")
@click.option("--route", metavar="TEXT", help="Only this route, as the list shows it.")
@connection_options
def split(weights: tuple[str, ...], route: str | None, url: str | None, token: str | None) -> None:
    """Show how routes are split between clusters, or change the weights of all clusters of a split.

    A change holds until the configured weights of the route change or the balancer is started again, also by a hot
    restart. No request is lost.

    \b
    Examples:
      balancer split
      balancer split stable=90 next=10
      balancer split stable=1 next=0 --route '*://*/shop/*'
    """
    client = AdminClient(url, token)
    if weights:
        order = {"weights": dict(map(weight_of, weights)), **({"route": route} if route is not None else {})}
        found = client.document("PUT", SPLITS, order)
    else:
        found = client.document("GET", SPLITS)

    def lines() -> list[str]:
        shown = [each for each in found["splits"] if route in (None, each["route"])]
        if route is not None and not shown:
            raise click.UsageError(f"--route: no route '{route:.200}' is split")
        return [line for each in shown for line in split_lines(each)] or ["no route is split"]

    client.show(lines)


def weight_of(argument: str) -> tuple[str, float]:
    """Return cluster and weight. Raises `click.UsageError`."""
    name, _, weight = argument.rpartition("=")
    try:
        return name, number(weight)
    except ValueError:
        raise click.UsageError(f"must be CLUSTER=WEIGHT, such as next=10, got '{argument:.60}'") from None
