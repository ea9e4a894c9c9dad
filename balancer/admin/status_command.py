"""`balancer status` and `balancer admin`: show a running balancer, and send it any admin request."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from balancer.admin.endpoint_commands import line_of
from balancer.admin.options import BalancerClient, connection_options
from balancer.printable import printable
from policies.loading.reference import label_of


@click.command("status")
@connection_options
@click.option("--json", "is_json", is_flag=True, help="The whole document, as /-/status gives it.")
def status(url: str, token: str | None, is_json: bool) -> None:
    """Show the state of a running balancer: its policy, requests, errors and endpoints.

    \b
    Examples:
      balancer status
      balancer status --url http://127.0.0.1:9000 --json
    """
    client = BalancerClient(url, token)
    document = client.ask("GET", "/-/status")
    if is_json:
        click.echo(json.dumps(document, indent=2))
    else:
        client.show(lambda: lines_of(document))


def lines_of(document: dict[str, Any]) -> list[str]:
    """Format the status of a balancer or a sidecar for a terminal."""
    errors = ", ".join(f"{reason} {number}" for reason, number in document["errors"].items()) or "none"
    state = "draining" if document["draining"] else "serving"
    lines = [
        f"steelyard {document['version']} ({document['build']}) {state} for {document['uptime']:.0f} s",
        f"clients {document['clients']}, in flight {document['in_flight']}, queued {document.get('queued', 0)}, "
        f"requests {document['requests']}, retried {document.get('retried', 0)}, errors: {errors}",
    ]
    if "policy" in document:
        lines.append(
            f"policy {label_of(document['policy']['name'])}, fallback picks {document['policy']['fallback_picks']}"
        )
        lines += [
            f"  {file['path']}, version {file['version']}, loaded {file['loaded']}"
            for file in document["policy"].get("files", ())
        ]
        lines += [line_of(each) for each in document["endpoints"]]
    for origin in document.get("origins", ()):
        lines.append(f"{origin['id']:<24} requests {origin['requests']:<8} {origin['url']}")
    return lines


@click.command("admin")
@click.argument("method", type=click.Choice(["get", "put", "post", "patch", "delete"], case_sensitive=False))
@click.argument("path")
@click.argument("body", required=False)
@connection_options
def admin(method: str, path: str, body: str | None, url: str, token: str | None) -> None:
    """Send an admin request to a running balancer and print the response; exit 1 if it is refused.

    PATH is what follows /-/ and BODY is JSON; text that is not JSON is sent as a string.

    \b
    Examples:
      balancer admin get metrics
      balancer admin put policy '{"name": "latency-weighted", "explore": 0.05}'
      balancer admin post reload
    """
    document: Any = None
    if body is not None:
        try:
            document = json.loads(body)
        except ValueError:
            document = body
    code, text = BalancerClient(url, token).text(
        method.upper(), f"/-/{path.removeprefix('/-/').lstrip('/')}", document
    )
    click.echo(printable(text.rstrip("\n")))
    if not 200 <= code < 300:
        sys.exit(1)
