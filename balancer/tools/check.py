"""`balancer check`: validate the configuration that `serve` would read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from balancer.cluster.discovery.file_source import FileSource
from balancer.config.effective import effective, set_by_kind
from balancer.config.loading import LoadedSettings
from balancer.config.problems import in_cluster
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.config.schema.routes import listed
from balancer.config.warnings import route_warnings, warnings_about
from balancer.configuration import load_with_sources
from balancer.process.lifecycle import say
from balancer.routes.table import refused_routes
from balancer.syntax.printable import printable
from balancer.tls.contexts import expired_certificates
from balancer.tools.overrides import overrides, with_overrides


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--print", "is_printed", is_flag=True, help="Print every key as TOML, with the source of its value."
)
@with_overrides
def check_command(file: Path | None, is_printed: bool, **options: Any) -> None:
    """Validate the configuration that 'serve' would read.

    It is that of FILE, the environment and these options, as 'balancer serve --config FILE' reads them. Prints
    the policy, the listening address and the endpoints, or a line for each mistake (exit code 2).

    \b
    Examples:
      balancer check balancer.toml
      balancer check balancer.toml --print
      BALANCER_RETRIES=1 balancer check balancer.toml --policy round-robin --print
    """
    reading = load_with_sources(file, overrides(file, **options))
    if is_printed:
        for line in effective(reading.settings, reading.source):
            say(printable(line))
        return
    for line in [*report(reading, file)]:  # all of it is made first: a file of endpoints may be invalid
        say(line)


def report(reading: LoadedSettings, file: Path | None) -> Iterator[str]:
    """Yield what `check` prints of a valid configuration. Raises `ConfigError` for a file of endpoints."""
    settings = reading.settings
    yield f"{file or 'the environment'} is valid: policy {settings.policy.label}, listening on {settings.listen}"
    for name, listener in settings.listeners.items():
        yield f"listener {name}: {listener}"
    yield from endpoint_lines(settings)
    for name, cluster in settings.clusters.items():
        yield f"cluster {name}: policy {cluster.policy.label}"
        with in_cluster(name):
            yield from endpoint_lines(cluster)
    yield from listed(settings.routes, has_default=settings.has_endpoints)
    for line in (
        *route_warnings(settings),
        *refused_routes(settings.routes, settings.normalise),
        *warnings_about(reading, file, lambda each: FileSource(each).first()),
        *expired_certificates(settings),
    ):
        yield f"warning: {line}"


def endpoint_lines(cluster: ClusterSettings) -> Iterator[str]:
    """Yield what the kind of a cluster sets, its endpoints and the sources of further ones."""
    by_kind = ", ".join(set_by_kind(cluster))
    if by_kind:
        yield f"  kind {cluster.kind} sets {by_kind}"
    for endpoint in cluster.endpoints:
        backup = f" (backup, priority {endpoint.priority})" if endpoint.priority else ""
        yield f"  {endpoint.id:<16} {endpoint.region:<8} weight {endpoint.weight:<6g} {endpoint.address}{backup}"
    if cluster.discovery.file is not None:
        for endpoint in FileSource(cluster.discovery.file).first():
            yield f"  {endpoint.id:<16} {endpoint.region:<8} weight {endpoint.weight:<6g} {endpoint.address} (file)"
    for source in cluster.discovery.remote:
        yield f"  {source.source}, looked up while it runs"
