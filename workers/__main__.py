"""Command line: `workers serve` starts one worker, `workers inference` one that emulates an inference server,
`workers fault` sets their faults.

Invalid input gives one line on standard error that names the option and what is allowed, exit code 2. Defaults are
those of `Settings` and not repeated here.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from workers.durations import format_duration, parse_counts, parse_duration, parse_span
from workers.errors import WorkersError
from workers.inference.settings import EngineModel, InferenceSettings
from workers.service import ALLOWED_PROFILES, parse_profile
from workers.settings import Settings

DEFAULT = Settings()
ENGINE = EngineModel()
SERVED = InferenceSettings()
ENGINE_OPTIONS = {one.name for one in fields(EngineModel)}
F = TypeVar("F", bound=Callable[..., Any])


def _parsed(parse: Callable[[str], Any], metavar: str) -> Callable[[str], Any]:
    """Return an option type from a function whose ValueError is shown to the user."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    convert.__name__ = metavar
    return convert


class Duration(click.FloatRange):
    """Option type of durations, with bounds in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_parsed(parse_duration, self.name)(value), param, ctx)


DURATION = _parsed(parse_duration, "duration")
STEP = Duration(min=0, min_open=True)
COUNTS = _parsed(parse_counts, "n|min-max")
SPAN = _parsed(parse_span, "min-max")
PROFILE = _parsed(parse_profile, "profile")
COUNT = click.IntRange(min=1)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FACTOR = click.FloatRange(min=0, max=1e6, min_open=True)
RATE = click.FloatRange(min=0, max=1e9, min_open=True)


def _option(
    flag: str, type_: Any, help_: str, default: object = None, name: str | None = None
) -> Callable[[F], F]:
    """Define an option that is absent unless given. Its help has `default`, which click would put in parentheses."""
    names = (flag, name) if name else (flag,)
    text = f"{help_}  [default: {default}]" if default else help_
    return click.option(*names, type=type_, default=None, help=text)


PLACE = (
    _option("--region", str, "The place it stands for.", DEFAULT.region),
    _option("--name", str, "Its name, in X-Worker-Name.", "REGION-0"),
    _option("--host", str, "The address to listen on.", DEFAULT.host),
    _option("--port", click.IntRange(0, 65535), "0 takes any free port.", "0"),
    _option("--rtt", DURATION, "Round trip of the emulated link.", "0ms", name="round_trip"),
)
PROTOCOLS = (
    _option("--keep-alive", DURATION, "Idle connections are closed after this.", "75s"),
    _option("--tls", click.Choice(["1.2", "1.3"]), "Speak TLS of this version only.", "none"),
    _option(
        "--http", click.Choice(["1.1", "2"]), "2 also serves 1.1 to clients that begin with it.", DEFAULT.http
    ),
    _option("--certificate", FILE, "PEM with a certificate and its key.", "made at the start"),
)
END = (
    _option("--grace", DURATION, "On SIGTERM, requests in flight have this long.", "10s"),
    _option("--seed", int, "Of everything drawn at random.", "0"),
)


def _all(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Define options that several commands have."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


EPILOG = """\b
Examples:
  workers serve --region emea --name emea-0 --port 9001 --rtt 350ms --slots 1
  workers serve --port 9443 --rtt 30ms --tls 1.3 --http 2
  workers fault http://127.0.0.1:9001 --slow 5 --lasts 30s
  workers fault http://127.0.0.1:9001 --pause 150ms --every 2s
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(package_name="steelyard", prog_name="workers", message="%(prog)s %(version)s")
def cli() -> None:
    """Emulated regional workers.

    Durations are written 350ms, 1.5s, 2m, or as plain seconds.
    """


@cli.command(
    epilog="\b\nExample:\n  workers serve --region emea --name emea-0 --port 9001 --rtt 350ms --slots 1"
)
@_all(PLACE)
@_option("--service", PROFILE, f"Time a request is served: {ALLOWED_PROFILES}.", "19-21ms")
@_option("--speed", FACTOR, "2 serves everything twice as fast.", "1")
@_option(
    "--demand",
    click.IntRange(min=0),
    "Serve a request for the N-th of the seconds in its X-Service-Times, from 0 on, if it has some.",
)
@_option("--slots", COUNT, "Requests served at a time.", DEFAULT.slots)
@_option(
    "--queue", click.IntRange(min=0), "Requests that may wait; one more gets 503.", 1000, name="queue_limit"
)
@_all(PROTOCOLS)
@click.option("--resumption/--no-resumption", default=True, help="Resume TLS sessions.", show_default=True)
@_option("--max-streams", COUNT, "HTTP/2: requests at a time on a connection.", DEFAULT.max_streams)
@click.option("--split-head", is_flag=True, help="HTTP/2: head and body leave in packets of their own.")
@_option(
    "--close-idle-at-random", SPAN, "Idle connections live for a time drawn from this.", name="close_idle"
)
@_option(
    "--max-requests-per-connection",
    COUNTS,
    "The last answer says Connection: close. A span: each draws its own.",
    "unlimited",
)
@_option("--sleep-after", DURATION, "Fall asleep after this without a request.", "never")
@_option("--wake-time", DURATION, "What the first request to a sleeping worker waits.", "0ms")
@click.option("--start-asleep", "starts_asleep", is_flag=True, help="Be asleep at the start.")
@click.option("--start-down", "starts_down", is_flag=True, help="Listen only from SIGHUP on; needs a --port.")
@_all(END)
@click.option("--time-scale", type=FACTOR, default=1.0, help="Multiply every duration but --grace by this.")
def serve(time_scale: float, **options: Any) -> None:
    """Serve /work, /healthz and /-/faults until SIGTERM."""
    given = _given(options)
    if given.get("starts_down") and not given.get("port"):
        raise click.UsageError(
            "--start-down needs a --port, because a free one is chosen only when the port opens"
        )
    _run(_serve(Settings(**given).scaled(time_scale)))


@cli.command(
    epilog="\b\nExample:\n  workers inference --name engine-0 --port 9101 --prefill 8000 --max-waiting 20",
    short_help="Emulate an inference server with OpenAI's API.",
)
@_option("--model", str, "The model that it serves.", SERVED.model)
@_option("--tokens", COUNTS, "Tokens of an answer, which max_tokens bounds. A span: drawn.", "64")
@_option("--prefill", RATE, "Prompt tokens computed per second.", f"{ENGINE.prefill:g}")
@_option("--chunk", COUNT, "Tokens of a step at most.", ENGINE.chunk)
@_option("--step", STEP, "Time of a step,", "10ms", name="base")
@_option(
    "--step-per-sequence", DURATION, "and what each sequence that decodes adds.", "0.1ms", name="per_sequence"
)
@_option("--block-tokens", COUNT, "Tokens of a block of the KV cache.", ENGINE.block_tokens)
@_option("--kv-blocks", COUNT, "Blocks of the KV cache.", ENGINE.kv_blocks)
@_option("--max-batch", COUNT, "Sequences computed at a time.", ENGINE.max_batch)
@_option("--max-waiting", COUNT, "Requests that may wait; one more is refused.", "unlimited")
@_option("--busy-status", click.Choice(["429", "503"]), "The status of that refusal.", SERVED.busy_status)
@_all(PLACE)
@_all(PROTOCOLS)
@_all(END)
def inference(**options: Any) -> None:
    """Serve /v1/chat/completions, /v1/completions, /v1/models, /metrics, /health and /-/faults until SIGTERM."""
    given = _given(options)
    try:
        engine = EngineModel(**{name: given.pop(name) for name in ENGINE_OPTIONS & given.keys()})
    except ValueError as error:
        raise click.UsageError(f"--{str(error).replace('_', '-')}") from None
    if "busy_status" in given:
        given["busy_status"] = int(given["busy_status"])
    served = {name: given.pop(name) for name in ("model", "tokens", "busy_status") if name in given}
    _run(_serve(Settings(**given), InferenceSettings(engine=engine, **served)))


def fault_option(name: str, field: Any, is_time: bool) -> click.Option:
    """Return the option of `workers fault` for a field of `Faults`."""
    text = f"{str(field.description)[:1].upper()}{str(field.description)[1:]}."
    text += f"  [default: {field.default:g}{'s' if is_time else ''}]" if field.default else ""
    kind, flag = _type_of(field, is_time), f"--{name.replace('_', '-')}"
    return click.Option([flag], type=kind, is_flag=field.annotation is bool, default=None, help=text)


def _type_of(field: Any, is_time: bool) -> click.ParamType[Any]:
    """Return the option type for the annotation and bounds of a field of `Faults`."""
    if field.annotation is bool:
        return click.BOOL
    if get_origin(field.annotation) is Literal:
        return click.Choice([str(one) for one in get_args(field.annotation)])
    names = ("gt", "ge", "le")
    limits = {name: getattr(one, name) for one in field.metadata for name in names if hasattr(one, name)}
    number = Duration if is_time else click.FloatRange
    return number(limits.get("ge", limits.get("gt")), limits.get("le"), min_open="gt" in limits)


class FaultCommand(click.Command):
    """A command with an option for each field of `Faults`, made when it is called; each is absent unless given."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from workers.faults import TIMES, Faults  # imports pydantic: not for other commands

        options = [fault_option(name, field, name in TIMES) for name, field in Faults.model_fields.items()]
        return [*options, *super().get_params(ctx)]


@cli.command(
    cls=FaultCommand,
    epilog="\b\nExample:\n  workers fault http://127.0.0.1:9001 --slow 5 --lasts 10s",
    short_help="Replace or show the faults of a worker.",
)
@click.argument("url")
@click.option("--heal", is_flag=True, help="No faults from now on.")
def fault(url: str, heal: bool, **switches: Any) -> None:
    """Replace the faults of the worker at URL; without options, show them."""
    from workers.fault_client import exchange  # not needed by `serve`, which must start fast

    thrown = {name: value for name, value in switches.items() if value is not None}
    if heal and thrown:
        raise click.UsageError("--heal goes with no other option")
    if "fail_status" in thrown:
        thrown["fail_status"] = int(thrown["fail_status"])
    click.echo(json.dumps(exchange(url, thrown if heal or thrown else None)))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, and a name."""
    given = {name: value for name, value in options.items() if value is not None}
    if "certificate" in given and "tls" not in given:
        raise click.UsageError("--certificate goes with --tls 1.2 or 1.3")
    return {"name": f"{given.get('region', DEFAULT.region)}-0", **given}


async def _serve(settings: Settings, served: InferenceSettings | None = None) -> None:
    from workers.inference.app import InferenceApp  # imports aiohttp: not for --help or a usage error
    from workers.server import Worker

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    loop.add_signal_handler(signal.SIGINT, ending.set)
    worker = Worker(settings) if served is None else Worker(settings, partial(InferenceApp, served))
    async with worker:
        loop.add_signal_handler(signal.SIGHUP, worker.switchboard.heal)
        gc.freeze()  # imported objects never die; a collection that scans them is a pause of milliseconds
        _say(_ready_line(worker.url, settings, served))
        await ending.wait()


def _say(line: str) -> None:
    """Print a line; on standard error if that fails. Not through a buffer, which would fail again at the exit."""
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except OSError as error:
        _complain(f"standard output: {error.strerror}: {line}", 0)


def _ready_line(url: str, settings: Settings, served: InferenceSettings | None) -> str:
    slots = "1 slot" if settings.slots == 1 else f"{settings.slots} slots"
    if served is not None:
        slots = f"model {served.model}"
    rtt = format_duration(settings.round_trip)
    spoken = f", TLS {settings.tls}" if settings.tls else ""
    spoken += ", HTTP/2" if settings.http == "2" else ""
    return f"{settings.name} ready on {url} (region {settings.region}, rtt {rtt}, {slots}{spoken})"


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _open_streams() -> None:
    """Open /dev/null as each standard stream that was closed before the start, or a socket would get its descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))


def main() -> None:
    """Entry point of the console script. Exits with 0, or with the code of the error that it prints in one line."""
    _open_streams()
    try:
        code = cli.main(prog_name="workers", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help, as it is
        code = error.exit_code
    except click.ClickException as error:
        code = _complain(error.format_message(), error.exit_code)
    except WorkersError as error:
        code = _complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code or 0)


def _complain(message: str, code: int) -> int:
    click.echo(f"workers: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
