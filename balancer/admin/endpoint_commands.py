"""`balancer endpoints …`: list and change the endpoints of a running balancer over its admin interface."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from balancer.admin.options import BalancerClient, connection_options

PATH = "/-/endpoints"

EPILOG = """\b
Examples:
  balancer endpoints list
  balancer endpoints add emea-3 http://10.0.0.7:8080 --region emea
  balancer endpoints drain emea-1
  balancer endpoints weight emea-2 0.5
  balancer endpoints --url https://balancer.example.org --token … remove emea-1
"""


@click.group("endpoints", epilog=EPILOG)
@connection_options
@click.pass_context
def endpoints(context: click.Context, url: str, token: str | None) -> None:
    """List and change the endpoints of a running balancer; no request is lost."""
    context.obj = BalancerClient(url, token)


@endpoints.command("list")
@click.pass_obj
def list_command(balancer: BalancerClient) -> None:
    """List each endpoint with its state, weight, requests in flight and source."""
    told = balancer.ask("GET", PATH)
    balancer.show(lambda: [*map(line_of, told["endpoints"]), *map(leaving_line, told["leaving"])])


def leaving_line(each: dict[str, Any]) -> str:
    """Format a removed endpoint that still has requests in flight."""
    return f"{each['id']:<24} leaving   in flight {each['in_flight']:<5} {each['address']}"


def line_of(each: dict[str, Any]) -> str:
    """Format one endpoint as a line."""
    state = each["state"] if each["state"] != "up" or each["available"] else "up, full or unfit"
    return (
        f"{each['id']:<24} {state:<9} in flight {each['in_flight']:<5} weight {each['weight']:<6g} "
        f"{each['region']:<10} {each['address']} ({each['source']})"
    )


@endpoints.command("add")
@click.argument("name")
@click.argument("address")
@click.option("--region", help="Default: default.")
@click.option("--weight", type=float, help="Share relative to the others; default: 1.")
@click.option("--max-in-flight", type=int, help="Most requests at once; default: no limit.")
@click.pass_obj
def add_command(balancer: BalancerClient, /, name: str, address: str, **options: Any) -> None:
    """Add an endpoint; it stays until it is removed or the balancer stops."""
    given = {key: value for key, value in options.items() if value is not None}
    told = balancer.ask("POST", PATH, {"id": name, "address": address, **given})
    balancer.show(lambda: [line_of(told)])


@endpoints.command("remove")
@click.argument("name")
@click.pass_obj
def remove_command(balancer: BalancerClient, name: str) -> None:
    """Remove an endpoint; its requests in flight finish."""
    told = balancer.ask("DELETE", f"{PATH}/{quote(name, safe='')}")
    balancer.show(lambda: [f"{told['id']:<24} removed   in flight {told['in_flight']}"])


def change(balancer: BalancerClient, name: str, **keys: Any) -> None:
    """Send the change of one endpoint and print the result."""
    told = balancer.ask("PATCH", f"{PATH}/{quote(name, safe='')}", keys)
    balancer.show(lambda: [line_of(told)])


@endpoints.command("drain")
@click.argument("name")
@click.pass_obj
def drain_command(balancer: BalancerClient, name: str) -> None:
    """Drain an endpoint: no new requests; those in flight finish."""
    change(balancer, name, state="draining")


@endpoints.command("down")
@click.argument("name")
@click.pass_obj
def down_command(balancer: BalancerClient, name: str) -> None:
    """Take an endpoint down: like drain, and its idle connections are closed at once."""
    change(balancer, name, state="down")


@endpoints.command("up")
@click.argument("name")
@click.pass_obj
def up_command(balancer: BalancerClient, name: str) -> None:
    """Let an endpoint take requests again."""
    change(balancer, name, state="up")


@endpoints.command("weight")
@click.argument("name")
@click.argument("weight", type=float)
@click.pass_obj
def weight_command(balancer: BalancerClient, name: str, weight: float) -> None:
    """Set an endpoint's weight relative to the others, until the next reload."""
    change(balancer, name, weight=weight)
