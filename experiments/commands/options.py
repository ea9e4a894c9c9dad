"""Command-line options shared by measured and simulated campaigns."""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from balancer.syntax.urls import server_url
from experiments.errors import BadInputError
from experiments.platform.terminal import require_writable
from experiments.scenario.labels import policy_label, shortened
from experiments.sweep.grid import MEASURES
from policies.loading.reference import located_here
from workers.durations import parse_duration

if TYPE_CHECKING:
    from experiments.live_page.process import LivePage


class Number(click.FloatRange):
    """Finite number within bounds; click's own range accepts `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """Option type from a function that raises `ValueError`, and what is allowed in words."""

    def __init__(self, name: str, parse: Callable[[str], Any], allowed: str) -> None:
        self.name = name
        self._parse = parse
        self._allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text. Raises `BadInputError`."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError:
            option = param.opts[0] if param else self.name
            raise BadInputError(f"{option}: must be {self._allowed}, got {value!r}") from None


class OutputFile(click.Path):
    """Option type of a file that is written at the end; it must be possible before anything is measured."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check the directory, or where that is `--out`, which will be made, the name. Raises `BadInputError`."""
        file: Path = super().convert(value, param, ctx)  # type: ignore[assignment]  # `path_type`
        option, out = param.opts[0] if param else self.name, ctx and ctx.params.get("out")
        if not isinstance(out, Path) or out.resolve() != file.parent.resolve():
            require_writable(option, file)
        elif option == "--junit" and file.suffix != ".xml":
            raise BadInputError(f"{option}: in --out it must end in .xml, got {file}")
        return file


def duration_in(text: str) -> float:
    """Seconds of a duration of more than 0. Raises `ValueError`."""
    if (seconds := parse_duration(text)) <= 0:
        raise ValueError("nothing")
    return seconds


def share_in(text: str) -> float:
    """Share (0..1) of a percentage. Raises `ValueError`."""
    if not 0 <= (share := float(text.removesuffix("%")) / 100) <= 1:
        raise ValueError("more than all")
    return share


A_DURATION = "a duration such as 350ms, 30s or 2m"
DURATION = Parsed("duration", duration_in, A_DURATION)
DURATION_OR_NONE = Parsed(
    "duration", lambda text: 0.0 if text.strip() in ("0", "0s") else duration_in(text), A_DURATION
)
POSITIVE = Number(min=0, min_open=True)
PERCENT = Parsed("percent", share_in, "a percentage such as 1%")

OUTPUT = OutputFile(dir_okay=False, path_type=Path)
JSON = click.option("--json", "file", type=OUTPUT, help="Write all of it there, as JSON.")
OUT = click.option(
    "--out", is_eager=True, type=click.Path(path_type=Path), help="A new directory for results."
)

PATIENCE = click.option(
    "--patience",
    type=DURATION,
    default=0.0,
    show_default=False,
    help="For each run, to wait for a quiet machine and to measure again what was disturbed.  [default: none]",
)


PAGE = click.option(
    "--page",
    metavar="[HOST:]PORT",
    help="Serve a live page on this machine while it measures, such as 9180.  [default: none]",
)


SIMULATED = click.option("--simulated", is_flag=True, help="In virtual time, not on real processes.")


def require_parquet(context: click.Context, option: click.Parameter, is_wanted: bool) -> bool:
    """Check that pyarrow is installed if it is wanted. Raises `BadInputError`."""
    if is_wanted and importlib.util.find_spec("pyarrow") is None:
        raise BadInputError("--parquet: pyarrow is not installed: pip install '.[parquet]' in the checkout")
    return is_wanted


PARQUET = click.option(
    "--parquet",
    is_flag=True,
    callback=require_parquet,
    help="Write tables and requests as Parquet too; needs the extra `parquet`.",
)


JUNIT = click.option("--junit", type=OUTPUT, help="Write there, as JUnit XML, which thresholds were met.")


def collector_at(context: click.Context, option: click.Parameter, url: str | None) -> str | None:
    """URL for metrics of the collector at `url`, by OTLP over HTTP. Raises `BadInputError`."""
    if url is None:
        return None
    parts = server_url(url)
    if parts is None:
        raise BadInputError(f"--otlp: must be http://host[:port][/path] or https://…, got {url[:60]!r}")
    try:
        import experiments.running.otlp  # noqa: F401
    except ImportError:
        raise BadInputError(
            "--otlp: opentelemetry-sdk is not installed: pip install '.[otel]' in the checkout"
        ) from None
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/v1/metrics"


OTLP = click.option(
    "--otlp",
    metavar="URL",
    callback=collector_at,
    help="Send live figures to an OpenTelemetry collector while it measures; needs the extra `otel`.",
)

POLICY = click.option(
    "--policy", "tables", multiple=True, metavar="JSON", help="A policy with options; may be repeated."
)
TOKEN = click.option(
    "--token",
    envvar="BALANCER_ADMIN__TOKEN",
    help="The admin.token of the balancer; also from the environment.",
)
MAX_P99 = click.option(
    "--max-p99", type=DURATION, help="Roll back beyond this p99.  [default: twice what it was before]"
)
MAX_ERRORS = click.option(
    "--max-errors",
    type=PERCENT,
    help="Roll back beyond this share of failed requests.  [default: 2% more than before]",
)


def policies_chosen(
    policies: str, tables: tuple[str, ...]
) -> tuple[dict[str, dict[str, Any]], tuple[str, str] | None]:
    """Policies by label, and the labels of the A/A pair if one was named twice. Raises `BadInputError`."""
    chosen: dict[str, dict[str, Any]] = {}
    control: tuple[str, str] | None = None
    wanted: list[dict[str, Any]] = [{"name": name.strip()} for name in policies.split(",") if name.strip()]
    wanted = located_here([*wanted, *map(table_in, tables)])
    for policy in wanted:
        label = policy_label(policy, chosen)
        if label not in chosen:
            chosen[label] = policy
        elif control is None:
            control = label, shortened(label, " again")
            chosen[control[1]] = policy
        else:
            raise BadInputError(
                f"--policies: {label!r} is one pair too many; one is enough to know the noise"
            )
    if len(chosen) < 2:
        raise BadInputError("--policies: name two or more, separated by commas")
    return chosen, control


def table_in(text: str) -> dict[str, Any]:
    """Parse a policy with its options. Raises `BadInputError`."""
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise BadInputError(f"--policy: must be a JSON object with a name, got {text[:60]!r}")
    return table


def named(names: str | None, option: str = "--policies") -> tuple[str, ...]:
    """Names separated by commas; empty if the option was not given. Raises `BadInputError` if it names none."""
    found = tuple(name.strip() for name in (names or "").split(",") if name.strip())
    if names is not None and not found:
        raise BadInputError(f"{option}: name at least one, separated by commas")
    return found


def require_none(given: Mapping[str, object], why: str) -> None:
    """Raise `BadInputError` for the first option that was given and does not apply; `why` explains it."""
    for option, value in given.items():
        if value not in (None, (), False):
            raise BadInputError(f"--{option.replace('_', '-')}: {why}")


@contextmanager
def live_page(address: str | None) -> Iterator[LivePage | None]:
    """Serve the live page at `address` and print its URL; without an address nothing is imported."""
    if address is None:
        yield None
        return
    from experiments.live_page.process import LivePage

    with LivePage(address) as page:
        print(f"Live page: {page.url}", flush=True)
        yield page


def new_directory(name: str) -> Path:
    """Default results directory such as `results/regions-20260101-120000`, in local time."""
    return Path("results") / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def command_line(secret: Collection[str] = ()) -> str:
    """The command line of this process, quoted for a shell; values of the options in `secret` are left out."""
    shown, is_secret = ["experiments"], False
    for part in sys.argv[1:]:
        option, sign, value = part.partition("=")
        if is_secret:
            shown.append(without_secret(part))
        elif sign and option in secret:
            shown.append(f"{option}={without_secret(value)}")
        else:
            shown.append(part)
        is_secret = not is_secret and part in secret
    return shlex.join(shown)


def without_secret(value: str) -> str:
    """The value of an option without what may be secret: `Authorization: …`, or the name of a file."""
    name, colon, _ = value.partition(":")
    return value if value.startswith("@") else f"{name}: …" if colon else "…"


GRID = click.option(
    "--grid", metavar="NAME", help="Grid of a catalogue.  [default: the one that was swept last]"
)
MEASURE = click.option(
    "--measure", type=click.Choice(MEASURES), help="Measure of latency in a catalogue.  [default: p99]"
)
