"""`balancer split`: show and change the weights of splits of a running balancer over its admin interface."""

from __future__ import annotations

import click

from balancer.control.admin.options import BalancerClient, connection_options
from balancer.control.admin.splits_report import split_lines

PATH = "/-/splits"


@click.command("split", short_help="Show and change how routes are split between clusters.")
@click.argument("weights", nargs=-1, metavar="[CLUSTER=WEIGHT]...")
@click.option("--route", metavar="TEXT", help="Only this route, as the list shows it.")
@connection_options
def split(weights: tuple[str, ...], route: str | None, url: str, token: str | None) -> None:
    """Show how routes are split between clusters, or change the weights of all clusters of a split.

    A change holds until the configured weights of the route change or the balancer is started again, also by a hot
    restart. No request is lost.

    \b
    Examples:
      balancer split
      balancer split stable=90 next=10
      balancer split stable=1 next=0 --route '*://*/shop/*'
    """
    client = BalancerClient(url, token)
    if weights:
        order = {"weights": dict(map(weight_of, weights)), **({"route": route} if route is not None else {})}
        found = client.ask("PUT", PATH, order)
    else:
        found = client.ask("GET", PATH)
    client.show(
        lambda: (
            [line for each in found["splits"] if route in (None, each["route"]) for line in split_lines(each)]
            or ["no route is split"]
        )
    )


def weight_of(argument: str) -> tuple[str, float]:
    """Return cluster and weight. Raises `click.UsageError`."""
    name, _, weight = argument.rpartition("=")
    try:
        return name, float(weight)
    except ValueError:
        raise click.UsageError(f"must be CLUSTER=WEIGHT, such as next=10, got '{argument:.60}'") from None
