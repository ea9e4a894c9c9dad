"""`balancer probe URL`.

Exit code 2 for an invalid command line, 1 for a server that is unreachable or does not speak HTTP, each with a message
of one line. Progress goes to standard error, findings to standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from balancer.config.problems import ConfigError
from balancer.config.schema.endpoint import UpstreamTlsConfig
from balancer.errors import ConnectFailed, UpstreamError
from balancer.process.server import new_event_loop
from balancer.syntax.printable import one_line
from balancer.syntax.urls import is_authority
from balancer.tls.contexts import UpstreamTls
from balancer.tools.probe.findings import Findings, advice
from balancer.tools.probe.survey import Bounds, Survey
from balancer.tools.probe.target import BadTarget, ProbeTarget, target_of

UNREACHED = 1
"""Exit code for a server that cannot be probed."""

WIDTH = 120

EPILOG = """\b
Examples:
  balancer probe https://api.example.org
  balancer probe https://api.example.org/v1/ping --method HEAD --idle-limit 30
  balancer probe http://127.0.0.1:9001/healthz --json
  balancer probe http+unix:///run/app.sock:/healthz
"""


@click.command("probe", epilog=EPILOG, short_help="Probe how a server treats connections.")
@click.argument("url")
@click.option(
    "--idle-limit",
    type=click.FloatRange(0.5, 3600),
    default=75.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait for so long at most to see when idle connections are closed.",
)
@click.option(
    "--requests",
    type=click.IntRange(2, 1000),
    default=10,
    show_default=True,
    help="On one connection, at most.",
)
@click.option(
    "--method", type=click.Choice(["GET", "HEAD"]), default="GET", show_default=True, help="To ask with."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 120),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For each connection and for each answer.",
)
@click.option("--ca", type=click.Path(path_type=Path), help="PEM; who signs its certificate.")
@click.option("--host", metavar="NAME", help="Host to ask for; default: that of the URL.")
@click.option("--json", "is_json", is_flag=True, help="For machines.")
def probe(
    url: str,
    idle_limit: float,
    requests: int,
    method: str,
    timeout: float,
    ca: Path | None,
    host: str | None,
    is_json: bool,
) -> None:
    """Probe how a server treats connections: keep-alive, idle timeout, requests per connection, HTTP versions and time
    per phase; recommend a configuration for it.

    It takes some thirty GET and HEAD requests on some twelve connections, and changes nothing unless a GET does.
    """
    target, tls = _target(url, host), UpstreamTls(UpstreamTlsConfig(ca=ca))
    survey = _survey(target, Bounds(idle_limit, requests, timeout, method), tls)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            findings = runner.run(survey)
    except UpstreamError as error:
        _unreached(target, error, is_json)
    _tell(findings, advice(findings, ca), is_json)


def _target(url: str, host: str | None) -> ProbeTarget:
    if host is not None and not is_authority(host.encode()):
        raise click.UsageError(f"--host: must be host or host:port, got {host!r}")
    try:
        return target_of(url, host)
    except BadTarget as error:
        raise click.UsageError(f"URL: {error}") from None


async def _survey(target: ProbeTarget, bounds: Bounds, tls: UpstreamTls) -> Findings:
    from rich.console import Console  # here and in `_tell`, so that `balancer serve` does not load it

    console = Console(stderr=True)
    with console.status("…") as status:
        try:
            survey = Survey(target, bounds, tls, lambda words: status.update(f"{target.origin}: {words}"))
        except ConfigError as error:
            raise click.UsageError(str(error).replace("upstream_tls.", "--")) from None
        return await survey.run()


def _unreached(target: ProbeTarget, error: UpstreamError, is_json: bool) -> Any:
    kind = error.kind if isinstance(error, ConnectFailed) else error.reason
    detail = error.inside if isinstance(error, ConnectFailed) else str(error)
    if is_json:
        click.echo(json.dumps({"url": target.url, "error": {"kind": kind, "detail": detail}}))
    click.echo(f"balancer: {target.origin}: {WORDS.get(kind, kind)}: {one_line(detail)}", err=True)
    sys.exit(UNREACHED)


WORDS = {
    "name": "its name does not resolve",
    "refused": "no server listens there",
    "timeout": "no connection in time",
    "unreachable": "there is no way there",
    "reset": "it broke the connection off",
    "certificate_expired": "its certificate has expired",
    "certificate_name": "its certificate is for another name",
    "certificate_self_signed": "its certificate is signed by itself",
    "certificate_authority": "its certificate is not signed by a trusted authority; see --ca",
    "certificate": "its certificate is refused",
    "tls": "no TLS with it",
    "malformed_response": "it does not speak HTTP",
    "connection_broken": "it closed the connection instead of answering",
    "response_timeout": "it does not answer",
    "body_too_long": "it says too much",
}
"""Messages by kind of error."""


def _tell(findings: Findings, toml: str, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(findings.document() | {"recommended": toml}, indent=1, ensure_ascii=False))
        return
    from rich.console import Console

    from balancer.tools.probe.report import show

    console = Console()
    show(findings, toml, console if console.is_terminal else Console(width=max(console.width, WIDTH)))
