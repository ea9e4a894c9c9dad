"""`experiments what-if`: simulate recorded traffic without a region or under another policy.

Only parses options and prints the answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from experiments.commands.options import A_DURATION, JSON, require_none, table_in
from experiments.errors import BadInputError
from experiments.platform.terminal import console_here, plain_table, write_json
from experiments.recorded.proxy_logs import FORMATS, placed, read_proxy_logs
from experiments.recorded.recording import Recording, read_recording
from experiments.scenario.labels import policy_label
from experiments.scenario.overrides import require_policy
from experiments.scenario.supported import doubts_about_keys
from experiments.what_if.answer import Question, WhatIfAnswer, answer, region_in_words
from experiments.what_if.fit import RegionFit, fit, longest_span
from policies.loading.reference import located_here
from workers.durations import parse_duration

EPILOG = """\b
Examples:
  experiments what-if balancer.recording                        the recorded policy, simulated beside what was
  experiments what-if balancer.recording --without-region asia
  experiments what-if balancer.recording --without-region asia --policy peak-ewma --policy region-aware
  experiments what-if balancer.recording --policy '{"name": "least-in-flight", "choices": 3}' --slots 4
  experiments what-if access.log --format nginx --policy least-in-flight --policy steelyard
  experiments what-if haproxy.log --format haproxy --region eu=eu- --region us=us- --without-region us

\b
The recording is written by a balancer that is configured to:
  [record]
  path = "balancer.recording"                                   then POST /-/record, or enabled = true
"""

HIDDEN_DISTANCE = 5
"""Fastest service, as a multiple of a handshake, from which distance may be part of it."""

HEADS = (
    "policy",
    "world",
    "regions",
    "requests",
    "req/s",
    "p50 ms",
    "p99 ms",
    "mean ms",
    "failed",
    "goodput",
)


@click.command("what-if", epilog=EPILOG, context_settings={"show_default": True})
@click.argument("recording", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--format",
    "name",
    type=click.Choice(["steelyard", *FORMATS]),
    default="steelyard",
    help="What wrote RECORDING: a recording of Steelyard, or another proxy's access log.",
)
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="NAME=START",
    help="Of a log: the region of workers whose name or address begins so; may be repeated.",
)
@click.option(
    "--round-trip",
    "round_trips",
    multiple=True,
    metavar="[NAME=]TIME",
    help="Of a log: the round trip to a region, where handshakes do not show it; may be repeated.",
)
@click.option(
    "--placed-by",
    metavar="NAME|JSON",
    help="Of a log: the policy that the proxy picked by.  [default: round-robin]",
)
@click.option(
    "--without-region", "lost", multiple=True, metavar="NAME", help="A region that is lost; may be repeated."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME|JSON",
    help="May be repeated.  [default: the recorded one]",
)
@click.option(
    "--slots", type=click.IntRange(1, 10_000), help="Requests that a worker serves at once, if you know it."
)
@click.option("--blocks", type=click.IntRange(1, 1000), default=8, help="Simulations of each.")
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed of demand and policies.")
@JSON
def what_if(
    recording: tuple[Path, ...],
    name: str,
    regions: tuple[str, ...],
    round_trips: tuple[str, ...],
    placed_by: str | None,
    lost: tuple[str, ...],
    policies: tuple[str, ...],
    slots: int | None,
    blocks: int,
    seed: int,
    file: Path | None,
) -> int:
    """Simulate the traffic of RECORDING with other regions or policies; several files are merged.

    RECORDING is of Steelyard, or, with --format, an access log of another proxy.
    """
    from experiments.simulator.run import simulate

    console = console_here()
    if len({path.resolve() for path in recording}) < len(recording):
        raise BadInputError("RECORDING: a file is named twice; its requests would count twice")
    if name == "steelyard":
        only_of_logs = {"region": regions, "round_trip": round_trips, "placed_by": placed_by}
        require_none(only_of_logs, "is for a log; a recording knows it")
        whole = read_recording(recording)
    else:
        whole = with_round_trips(read_log(console, recording, name, regions, placed_by), round_trips)
    read, left_out = longest_span(whole)
    fitted = list(fit(read, slots))
    question = Question(checked(lost, fitted, read.regions), chosen(policies, read), blocks, seed)
    introduce(console, read, fitted)
    for line in doubts_about_keys([] if read.keys else question.policies.items()):
        console.print(Text(line, style="yellow"))
    if name != "steelyard" and not round_trips:
        doubt_distances(console, fitted)
    if left_out:
        console.print(Text(left_out, style="yellow"))
    with Progress(
        TextColumn("simulating {task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=blocks * (1 + len(question.policies) * bool(lost or policies)))

        def notify(label: str) -> None:
            progress.update(task, description=label, advance=1)

        with tempfile.TemporaryDirectory(prefix="steelyard-") as folder:
            instants = Path(folder) / "instants.txt"
            write_instants(read, instants)
            found = answer(read, instants, fitted, question, simulate, notify)
    present(console, found)
    write_json(file, found.as_dict())
    return 0


def read_log(
    console: Console, paths: tuple[Path, ...], name: str, regions: tuple[str, ...], placed_by: str | None
) -> Recording:
    """Read another proxy's log, and print first what it cannot tell. Raises `BadInputError`."""
    pairs = [region.partition("=")[::2] for region in regions]
    for region, start in pairs:
        if not region or not start:
            raise BadInputError(f"--region: must be NAME=START, got '{region:.40}'")
    policy = known_policy("--placed-by", placed_by or "round-robin")
    found = read_proxy_logs(paths, FORMATS[name], pairs, policy)
    used = {placed(endpoint.id, pairs) for endpoint in found.recording.endpoints}
    for region, start in pairs:
        if (region, start) not in used:
            raise BadInputError(
                f"--region: {region!r} has no worker whose name or address begins {start!r:.40} and no longer START"
            )
    console.print(Text(f"A log of {name} tells {FORMATS[name].unknown}.", style="yellow"))
    if found.others:
        console.print(Text(f"{found.others} lines are no requests in this format", style="yellow"))
    if found.own:
        console.print(Text(f"{found.own} requests are left out: {name} answered them itself", style="yellow"))
    return found.recording


def with_round_trips(recording: Recording, given: tuple[str, ...]) -> Recording:
    """Replace handshakes by what is given, `TIME` or `NAME=TIME` of a region. Raises `BadInputError`."""
    endpoints = recording.endpoints
    for text in given:
        name, _, time = text.rpartition("=")
        if name and name not in recording.regions:
            raise BadInputError(f"--round-trip: unknown {name!r}; known: {', '.join(recording.regions)}")
        try:
            seconds = parse_duration(time)
        except ValueError:
            raise BadInputError(f"--round-trip: must be {A_DURATION}, got {time!r}") from None
        endpoints = tuple(
            replace(each, connect=seconds) if name in ("", each.region) else each for each in endpoints
        )
    return replace(recording, endpoints=endpoints)


def write_instants(recording: Recording, path: Path) -> None:
    """Write arrivals, with their keys if they have any, to a file that a scenario can replay."""
    keys = recording.keys or [None] * len(recording)
    rows = (f"{at:.9f},{key or ''}\n" for at, key in zip(recording.instants, keys, strict=True))
    path.write_text("instant,key\n" * bool(recording.keys) + "".join(rows), encoding="ascii")


def checked(lost: tuple[str, ...], regions: list[RegionFit], others: Sequence[str] = ()) -> tuple[str, ...]:
    """Check that the lost regions, which may be `others` without an estimate, exist and one remains. Raises
    `BadInputError`."""
    estimated = {region.name.lower() for region in regions}
    known = {name.lower(): name for name in (*(region.name for region in regions), *others)}
    if not estimated:
        raise BadInputError("the recording has too few requests of any worker to estimate it")
    for name in lost:
        if name.lower() not in known:
            raise BadInputError(f"--without-region: unknown {name!r}; known: {', '.join(known.values())}")
    if estimated <= {name.lower() for name in lost}:
        raise BadInputError("--without-region: leaves no endpoint")
    return tuple(dict.fromkeys(known[name.lower()] for name in lost))


def known_policy(option: str, given: str | dict[str, Any]) -> dict[str, Any]:
    """Return a policy that can be made, from its name, JSON or table. Raises `BadInputError`."""
    policy: dict[str, Any]
    if isinstance(given, dict):
        policy = given
    else:
        policy = located_here(table_in(given) if given.lstrip().startswith("{") else {"name": given})
    require_policy(f"{option}: ", policy)
    return policy


def chosen(policies: tuple[str, ...], recording: Recording) -> dict[str, dict[str, Any]]:
    """Policies by label. Raises `BadInputError`."""
    found: dict[str, dict[str, Any]] = {}
    for given in policies or (recording.policy,):
        policy = known_policy("--policy", given)
        found[policy_label(policy, found)] = policy
    return found


def introduce(console: Console, recording: Recording, regions: list[RegionFit]) -> None:
    """Print what was recorded and the fitted regions."""
    span = float(recording.instants[-1])
    placed = f"as {policy_label(recording.policy, {})} placed them"
    console.print(Text(f"{len(recording)} requests in {span:.0f} s, {placed}."))
    for region in regions:
        asked = sum(worker.requests for worker in region.workers) / span if span else 0.0
        console.print(Text(f"  {region_in_words(region, asked)}"))
    known = {worker.endpoint.id for region in regions for worker in region.workers}
    strange = [endpoint.id for endpoint in recording.endpoints if endpoint.id not in known]
    if strange:
        console.print(Text(f"  left out, with too few requests: {', '.join(strange)}", style="yellow"))
    if recording.dropped:
        console.print(Text(f"  {recording.dropped} more requests were not recorded", style="yellow"))
    if recording.left_out:
        console.print(Text(f"  the last recording of {recording.left_out + 1} in these files", style="dim"))


def doubt_distances(console: Console, regions: list[RegionFit]) -> None:
    """Print the regions whose service times may contain their distance, because handshakes do not show it."""
    for region in regions:
        fastest = min(float(worker.service.min()) for worker in region.workers)
        if fastest > HIDDEN_DISTANCE * max(region.rtt, 1e-3):
            console.print(
                Text(
                    f"  {region.name}: handshakes took {region.rtt * 1e3:.0f} ms, and no request was served in less "
                    f"than {fastest * 1e3:.0f} ms. If that is distance, give it with --round-trip: "
                    "it counts as service here",
                    style="yellow",
                )
            )


def present(console: Console, found: WhatIfAnswer) -> None:
    """Print the table and its interpretation."""
    rows = [
        (
            *(line.label + " — INVALID" * bool(line.invalid), line.world, line.regions),
            *(str(line.requests), f"{line.rate:.1f}"),
            *(f"{1e3 * seconds:.1f}" for seconds in (line.p50, line.p99, line.mean)),
            f"{line.failed:.2%}",
            f"{line.goodput:.2%}",
        )
        for line in found.lines
    ]
    console.print(plain_table(HEADS, rows, left=("world", "regions")))
    for sentence in found.sentences:
        console.print(Text(sentence, style="bold red" if sentence.startswith("INVALID") else ""))
