"""`balancer serve`: forward requests, in one process or several. `balancer check`: validate its configuration."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from balancer.cluster.discovery.file_source import FileSource
from balancer.config.effective import effective, set_by_kind
from balancer.config.loading import ListenOptions, LoadedSettings, Settings, endpoints_from_workers
from balancer.config.problems import ConfigError, from_message, in_cluster, line_for
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.config.schema.routes import listed
from balancer.config.sources import PREFIX, decoded
from balancer.config.warnings import route_warnings, warnings_about
from balancer.configuration import load, load_with_sources
from balancer.control.reload import Read
from balancer.errors import ListenFailed, LogFailed
from balancer.log.output import LogOutput, complain, complain_of
from balancer.process.lifecycle import say, serve
from balancer.process.member import ServingProcess
from balancer.process.server import new_event_loop
from balancer.routes.table import refused_routes
from balancer.syntax.printable import printable
from balancer.tls.contexts import UpstreamTls, doubtful_certificates
from policies import registry
from policies.loading.source import Source

SERVE_EPILOG = """\b
Examples:
  balancer serve --config balancer.toml
  balancer serve --worker emea=http://127.0.0.1:9001 --worker us=http://127.0.0.1:9002 \\
      --home-region emea --port 8080 --admin 9180
  PORT=5000 balancer serve --config balancer.toml        (Heroku)
"""


OVERRIDES = (
    click.option(
        "--worker",
        multiple=True,
        metavar="REGION=URL",
        help="An endpoint; may be repeated. Replaces those of the file.",
    ),
    click.option(
        "--policy",
        shell_complete=lambda context, option, text: [
            name for name in registry.known() if name.startswith(text)
        ],
        help="The routing policy: a name, FILE.py:CLASS or MODULE:CLASS, or JSON with options (default steelyard).",
    ),
    click.option("--home-region", help="Region of this balancer's clients."),
    click.option("--host", help="Address to listen on (default 127.0.0.1)."),
    click.option(
        "--port", type=click.IntRange(0, 65535), help="Port to listen on (default $PORT, else 8080; 0: any)."
    ),
    click.option(
        "--admin",
        metavar="[HOST:]PORT",
        help="Address for admin requests and the live page, on 127.0.0.1 by default.",
    ),
    click.option(
        "--processes", type=click.IntRange(1), help="Number of processes (default $WEB_CONCURRENCY, else 1)."
    ),
    click.option("--seed", type=click.IntRange(0), help="Seed of the policies' random numbers."),
)
"""Options that override keys of the configuration; `check` has them too, so that it reads what `serve` reads."""


class ServeCommand(click.Command):
    """The command `serve`, with a list of the policies at the end of its help."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, then the policies, wrapped as options are."""
        super().format_epilog(context, formatter)
        with formatter.section("Policies"):
            formatter.write_dl(list(registry.describe().items()))


def with_overrides(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `OVERRIDES` to a command."""
    for option in reversed(OVERRIDES):
        command = option(command)
    return command


@click.command("serve", cls=ServeCommand, epilog=SERVE_EPILOG)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file; see 'balancer check'.")
@with_overrides
def serve_command(config: Path | None, **options: Any) -> None:
    """Forward requests until SIGTERM, then finish what is in flight."""
    given = overrides(config, **options)

    def read(files: Sequence[Source] = ()) -> Settings:
        return load(config, given, files)

    settings = read()
    for line in doubtful_certificates(settings):
        complain(line)
    if settings.processes == 1:
        sys.exit(run(settings, read))
    if settings.log.access != "off":
        LogOutput(settings.log.path).close()  # reports a problem once, and not in each process
    # Imported here, because it brings aiohttp, which each of several processes needs: once, before they are forked.
    from balancer.process.supervisor import Supervisor

    gc.collect()
    gc.freeze()  # keeps memory shared with the child processes
    sys.exit(Supervisor(settings, lambda member: run_as(member, settings, read), say).run())


def run(settings: Settings, read: Read, member: ServingProcess | None = None) -> int:
    """Run the server and return the exit code. `read` loads the current configuration."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return 0 if runner.run(serve(settings, read, say, member)) else 1


def run_as(member: ServingProcess, settings: Settings, read: Read) -> int:
    """Run as one of several processes. Errors are printed here, because the supervisor does not see them."""
    try:
        return run(member.part_of(settings), lambda files: member.part_of(read(files)), member)
    except (ConfigError, ListenFailed, LogFailed) as error:
        return complain_of(error)
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 1


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
            click.echo(printable(line))
        return
    try:
        lines = [*report(reading, file)]  # all of it is made first: a file of endpoints may be invalid
    except ConfigError as error:
        raise ConfigError(
            *(line_for(from_message(each), reading.source) for each in error.problems)
        ) from None
    for line in lines:
        click.echo(line)


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
        *doubtful_certificates(settings),
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
        for endpoint in FileSource(cluster.discovery.file).first(UpstreamTls(cluster.upstream_tls)):
            yield f"  {endpoint.id:<16} {endpoint.region:<8} weight {endpoint.weight:<6g} {endpoint.address} (file)"
    for source in cluster.discovery.remote:
        yield f"  {source.source}, looked up while it runs"


def overrides(
    config: Path | None,
    worker: tuple[str, ...],
    policy: str | None,
    home_region: str | None,
    host: str | None,
    port: int | None,
    seed: int | None,
    processes: int | None = None,
    admin: str | None = None,
) -> dict[str, Any]:
    """Return the command-line options as configuration keys."""
    given: dict[str, Any] = {"home_region": home_region, "seed": seed}
    given["policy"] = None if policy is None else decoded(policy, Any)
    given["processes"] = processes
    given = {key: value for key, value in given.items() if value is not None}
    if worker:
        given["endpoints"] = endpoints_from_workers(worker)
    elif config is None and not any(name.upper().startswith(PREFIX) for name in os.environ):
        raise ConfigError(
            "endpoints: give a configuration file, or one --worker REGION=http://host:port or more"
        )
    if host is not None or port is not None:
        given["listen"] = ListenOptions(host, port)
    if admin is not None:
        given["admin"] = {"listen": admin if ":" in admin else f"127.0.0.1:{admin}"}
    return given
