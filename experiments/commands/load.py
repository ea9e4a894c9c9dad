"""The command `experiments load`: an open-loop load on URLs, or on a running balancer under several policies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.text import Text

from experiments.commands.options import (
    DURATION,
    DURATION_OR_NONE,
    JUNIT,
    MAX_ERRORS,
    MAX_P99,
    OTLP,
    OUT,
    PATIENCE,
    POLICY,
    TOKEN,
    Number,
    command_line,
    new_directory,
    policies_chosen,
    require_none,
)
from experiments.errors import BadInputError
from experiments.generator.generator import SPARE_CONNECTIONS
from experiments.platform.descriptors import open_files
from experiments.platform.terminal import clock, console_here
from experiments.results.directory import load_results, require_new
from experiments.run_data import Kind
from experiments.scenario.service import METHODS, MOST_CONNECTIONS, ServiceScenario
from experiments.service.plan import Contestant, contestants_of, service_scenario
from experiments.service.target import parse_fields, reach, tls_of
from experiments.service.traffic import traffic_of
from experiments.stats.comparison import ENOUGH_BLOCKS

EPILOG = """\b
Examples:
  experiments load http://127.0.0.1:8080/                    50 requests per second for 30 s
  experiments load https://api.example.org/ping --rate 200 --duration 30s --cacert ca.pem
  experiments load old=http://10.0.0.1/ new=http://10.0.0.2/  two services, in blocks of random order
  experiments load http://127.0.0.1:8080/ http://127.0.0.1:8080/   an A/A control: the noise
  experiments load http://127.0.0.1:8080/ --policies round-robin,steelyard
  experiments load https://api.example.org/orders --method POST --data @order.json \\
      --header 'Content-Type: application/json' --header @token.header
  experiments load https://api.example.org/ --http2 --stages 50:30s,50-400:2m,400:1m
  experiments load https://api.example.org/ --traffic shop.toml     weighted requests, and perhaps stages
  experiments load http://127.0.0.1:8080/ --threshold 'p99 < 200 ms' --threshold 'errors < 0.1 %'

Latency counts from the instant at which a request was due. Statuses from 400 on and requests without a complete answer
are failures; redirects are answers and are not followed. Values of --header, --data, --token and of a file's fields and
bodies are not written. A file of --traffic:

\b
  [[requests]]                 # any number; each is sent in proportion to its weight
  weight = 9                   # [default: 1]
  path = "/search?q=scales"    # [default: that of URL]
  [[requests]]
  method = "POST"              # [default: GET, with a body POST]
  path = "/orders"
  fields = { Content-Type = "application/json" }
  body_file = "order.json"     # beside the file; or body = "…"
  [[stages]]                   # as --stages
  rate = 50
  to = 400                     # the rate grows to it; left out: it stays
  duration = "2m"

Exit codes: 0 done, 1 a threshold not met or a guard rail broken, 2 bad input, 3 no connection, 130 stopped.
"""

RATE, MOST_RATE = 50.0, 10_000.0
"""Default and largest rate per second. One generator sends some thousands per second on time."""

MAX_REQUESTS = 20_000_000
CONNECTIONS = 1000
RESERVED_FILES = 100
LOAD = ("rate", "duration", "arrivals")
"""Options that stages replace."""

SECRET = ("--header", "--data", "--token")


@click.command(epilog=EPILOG, context_settings={"show_default": True})
@click.argument("urls", metavar="[NAME=]URL…", nargs=-1, required=True)
@click.option("--rate", type=Number(0, MOST_RATE, min_open=True), default=RATE, help="Requests per second.")
@click.option("--duration", type=DURATION, default="30s", help="Time of each run.")
@click.option(
    "--stages", metavar="RATE:TIME,…", help="Instead of both: rates one after another; FROM-TO: a ramp."
)
@click.option("--traffic", metavar="FILE", help="Weighted requests, and perhaps stages, from a TOML file.")
@click.option("--http2", is_flag=True, help="HTTP/2: by ALPN over https, without being asked over http.")
@click.option(
    "--warmup", type=DURATION_OR_NONE, default="1s", help="Same load before each run, not counted; 0: none."
)
@click.option(
    "--blocks",
    type=click.IntRange(1, 1000),
    help=f"Runs of each.  [default: 1, or {ENOUGH_BLOCKS} to compare several: a verdict]",
)
@click.option("--arrivals", type=click.Choice(["poisson", "constant"]), default="poisson", help="Spacing.")
@click.option("--timeout", type=DURATION, default="10s", help="Then a request has failed.")
@click.option("--slo", type=DURATION, default="1s", help="Within it an answer is good (goodput).")
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="TEXT",
    help="As 'p99 < 200 ms'; exit code 1 if missed or not judged, with too few requests.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, MOST_CONNECTIONS),
    help=f"Most open at a time to each URL; further requests wait.  [default: {CONNECTIONS}]",
)
@click.option(
    "--method", type=click.Choice(METHODS, case_sensitive=False), help="[default: GET, with --data POST]"
)
@click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Or @FILE, a field per line."
)
@click.option("--data", metavar="TEXT", help="Body of each request, or @FILE.")
@click.option("--cacert", type=click.Path(path_type=Path), help="PEM; authorities that are trusted.")
@click.option("--insecure", is_flag=True, help="Accept any certificate.")
@click.option(
    "--policies", default=None, metavar="A,B,…", help="Policies of the balancer at URL, each in turn."
)
@POLICY
@click.option("--admin", metavar="URL", help="Where the balancer takes commands.  [default: URL]")
@TOKEN
@MAX_P99
@MAX_ERRORS
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, help="Seed of order and arrivals.")
@OUT
@PATIENCE
@JUNIT
@OTLP
def load(
    urls: tuple[str, ...],
    out: Path | None,
    patience: float,
    cacert: Path | None,
    insecure: bool,
    policies: str | None,
    tables: tuple[str, ...],
    admin: str | None,
    token: str | None,
    max_p99: float | None,
    max_errors: float | None,
    connections: int | None,
    method: str | None,
    headers: tuple[str, ...],
    data: str | None,
    stages: str | None,
    traffic: str | None,
    http2: bool,
    warmup: float,
    junit: Path | None,
    otlp: str | None,
    **given: Any,
) -> int:
    """Send requests to URL at fixed instants, and report latency, failures and throughput.

    Several URLs are compared in blocks: each has one run per block, in random order. With --policies the balancer at
    URL gets each policy in turn; its own policy is restored at the end, also on Ctrl-C and on any error.
    """
    from experiments.commands.session import require_thresholds, run_campaign
    from experiments.service.runner import ServiceRunner
    from experiments.switchback.balancer import LiveBalancer
    from experiments.switchback.turns import PolicyTurns

    if cacert is not None and insecure:
        raise BadInputError("--cacert: without effect with --insecure")
    sent = traffic_of(method, parse_fields(headers), data, stages, traffic)
    offered = sent.load(*(given.pop(key) for key in LOAD))
    if sent.stages:
        source = click.get_current_context().get_parameter_source
        given_too = {key: source(key) is ParameterSource.COMMANDLINE for key in LOAD}
        require_none(given_too, "the stages have their own")
    contestants = contestants_of(urls)
    is_in_turns = policies is not None or bool(tables)
    if is_in_turns:
        contestants = in_turns(contestants, policies or "", tables)
    else:
        only = {"admin": admin, "max_p99": max_p99, "max_errors": max_errors}
        require_none(only, "only with --policies or --policy")
    fastest = max([offered["rate"], *(max(stage.rate, stage.end_rate) for stage in sent.stages)])
    if fastest > MOST_RATE:
        raise BadInputError(f"--stages: at most {MOST_RATE:,.0f} requests per second, got {fastest:g}")
    most = allowed_connections(connections, fastest, given["timeout"])
    service = {
        **sent.described,
        "http2": http2,
        "connections": most,
        "warmup": warmup,
        "verifies": not insecure,
    }
    scenario = scenario_of(contestants, offered, service, **given)
    directory = out or new_directory("load")
    require_new(directory)
    require_thresholds(scenario, junit)
    console = console_here()
    tls = {one.url: tls_of(one.target, cacert, insecure, http2) for one in contestants}
    soon = min(10.0, scenario.timeout)
    destinations = {
        one.label: asyncio.run(reach(one.target, tls[one.url], sent.messages, soon, http2))
        for one in contestants
    }
    turns: PolicyTurns | None = None
    if is_in_turns:
        turns = PolicyTurns(
            LiveBalancer(admin or contestants[0].target.origin, token),
            max_p99,
            max_errors,
            lambda line: console.print(Text(line)),
        )
        turns.begin([one.policy for one in contestants])
    announce(console, scenario, is_in_turns)
    try:
        return run_campaign(
            scenario, directory, ServiceRunner(destinations, turns), patience,
            None if turns is None else turns.restoring(), command_line(SECRET),
            junit=junit, otlp=otlp,
        )  # fmt: skip
    finally:
        print_statuses(console, directory)


def in_turns(contestants: Sequence[Contestant], policies: str, tables: tuple[str, ...]) -> list[Contestant]:
    """An entry for each policy of the balancer at the only URL. Raises `BadInputError`."""
    if len(contestants) > 1:
        raise BadInputError("--policies: one URL, of a balancer, is needed")
    chosen, control = policies_chosen(policies, tables)
    repeats = {control[1]: control[0]} if control else {}
    return [
        replace(contestants[0], label=label, policy=policy, repeat_of=repeats.get(label))
        for label, policy in chosen.items()
    ]


def scenario_of(
    contestants: Sequence[Contestant],
    load: dict[str, Any],
    service: dict[str, Any],
    blocks: int | None,
    **given: Any,
) -> ServiceScenario:
    """The scenario of the options. Raises `BadInputError`."""
    blocks = blocks or (ENOUGH_BLOCKS if len(contestants) > 1 else 1)
    scenario = service_scenario(contestants, load, service, blocks=blocks, **given)
    if requests_in(scenario) > MAX_REQUESTS:
        raise BadInputError(
            f"--duration: {requests_in(scenario):,} requests in all; at most {MAX_REQUESTS:,} are sent"
        )
    return scenario


def requests_in(scenario: ServiceScenario) -> int:
    """Number of requests of the whole campaign, warm-up included."""
    each = scenario.load.planned + scenario.load.rate * scenario.service.warmup
    return round(len(scenario.entries) * scenario.blocks * each)


def allowed_connections(wanted: int | None, rate: float, timeout: float) -> int:
    """Most connections: as wanted, or what the load can need at most. Raises `BadInputError`.

    The limit of open files is raised as far as this process may.
    """
    most = wanted or max(SPARE_CONNECTIONS, min(CONNECTIONS, round(2 * rate * timeout)))
    limit = open_files(most + RESERVED_FILES)
    if wanted is not None and limit < wanted + RESERVED_FILES:
        raise BadInputError(
            f"--connections: {wanted} need {wanted + RESERVED_FILES} open files; this system allows {limit:g}"
        )
    return max(1, min(most, int(min(limit, MOST_CONNECTIONS + RESERVED_FILES)) - RESERVED_FILES))


def announce(console: Console, scenario: ServiceScenario, is_in_turns: bool) -> None:
    runs = len(scenario.entries) * scenario.blocks
    seconds = runs * (scenario.load.duration + scenario.service.warmup)
    first = scenario.load.duration if is_in_turns else 0.0  # under the initial policy, for the guard rails
    requests = requests_in(scenario) + (scenario.load.planned if is_in_turns else 0)
    words = f"{scenario.service.in_words}: {requests:,} requests in about {clock(seconds + first)}"
    console.print(Text(words))


def print_statuses(console: Console, directory: Path) -> None:
    """Print how many responses had which status, and what became of requests without one, for each entry."""
    try:
        results = load_results(directory)
    except BadInputError:
        return
    for entry in results.entries():
        runs = results.runs_of(entry.label)
        found = Counter(int(status) for run in runs for status in run.samples.status[run.samples.status > 0])
        words = ", ".join(f"{status} × {count}" for status, count in sorted(found.items())) or "none"
        lost = Counter(Kind(kind) for run in runs for kind in run.samples.kind[run.samples.status <= 0])
        fates = ", ".join(f"{kind.name.lower()} × {lost[kind]}" for kind in sorted(lost))
        note = f"; without one: {fates}" if lost else ""
        if any(300 <= status < 400 for status in found):
            note = f"; redirects count as answers and are not followed{note}"
        console.print(Text(f"Statuses of {entry.label}: {words}{note}"))
