"""`balancer serve`: forward requests, in one process or several."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.configuration import load
from balancer.control.reload import Read
from balancer.errors import ListenFailed, LogFailed
from balancer.log.output import LogOutput, complain, complain_of
from balancer.process.lifecycle import say, serve
from balancer.process.member import ServingProcess
from balancer.process.server import new_event_loop
from balancer.tls.contexts import expired_certificates
from balancer.tools.overrides import overrides, with_overrides
from policies import registry
from policies.loading.source import Source

SERVE_EPILOG = """\b
Examples:
  balancer serve --config balancer.toml
  balancer serve --worker emea=http://127.0.0.1:9001 --worker us=http://127.0.0.1:9002 \\
      --home-region emea --port 8080 --admin 9180
  PORT=5000 balancer serve --config balancer.toml        (Heroku)
"""


class ServeCommand(click.Command):
    """The command `serve`, with a list of the policies at the end of its help."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, then the policies, wrapped as options are."""
        super().format_epilog(context, formatter)
        with formatter.section("Policies"):
            formatter.write_dl(list(registry.describe().items()))


@click.command("serve", cls=ServeCommand, epilog=SERVE_EPILOG)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file; see 'balancer check'.")
@with_overrides
def serve_command(config: Path | None, **options: Any) -> None:
    """Forward requests until SIGTERM, then finish what is in flight."""
    given = overrides(config, **options)

    def read(files: Sequence[Source] = ()) -> Settings:
        return load(config, given, files)

    settings = read()
    for line in expired_certificates(settings):
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
