"""`balancer status` and `balancer admin`: show a running balancer, and send it any admin request."""

from __future__ import annotations

import json
import sys
from collections import deque
from time import monotonic, sleep
from typing import Any

import click

from balancer.control.admin.client import AdminClient, connection_options
from balancer.syntax.printable import printable, with_digits
from policies.loading.reference import label_of
from policies.stats.load import Histogram

WATCH_INTERVAL_S = 1.0
"""Seconds between two tables of --watch."""

WINDOW = 10
"""Readings of --watch over which rates and percentiles are taken: a p99 of one second has too few samples."""

CLEAR = "\x1b[H\x1b[2J"

Counts = dict[str, Any]
"""A reading of /-/latency, of all clusters or of one."""


@click.command("status", short_help="Show the state of a running balancer.")
@connection_options
@click.option("--watch", "is_watching", is_flag=True, help="Show it anew every second until Ctrl-C.")
@click.option("--json", "is_json", is_flag=True, help="The whole document, as /-/status gives it.")
def status(url: str | None, token: str | None, is_watching: bool, is_json: bool) -> None:
    """Show the state of a running balancer: its policy, requests, errors and endpoints.

    Shares, rates, percentiles and errors are since the start; with --watch those of the last ten seconds.

    \b
    Examples:
      balancer status
      balancer status --watch
      balancer status --url http://127.0.0.1:9000 --json
    """
    client = AdminClient(url, token)
    if is_watching:
        watch(client, is_json)
        return
    document = client.document("GET", "/-/status")
    if is_json:
        click.echo(json.dumps(document, indent=2))
        return
    now = client.document("GET", "/-/latency") if "policy" in document else None
    client.show(lambda: lines_of(document, now))


def watch(client: AdminClient, is_json: bool) -> None:
    """Show the status every second; on a terminal each table replaces the last. A lost balancer is waited for."""
    readings: deque[tuple[float, dict[str, Any]]] = deque(maxlen=WINDOW + 1)
    is_first = True
    while True:
        try:
            document = client.document("GET", "/-/status")
            now = client.document("GET", "/-/latency") if "policy" in document else None
        except click.ClickException as error:
            if is_first:
                raise
            click.echo(error.format_message(), err=True)
        else:
            is_first = False
            if is_json:
                click.echo(json.dumps(document))
            else:
                show_next(client, document, now, readings)
            sys.stdout.flush()
        sleep(WATCH_INTERVAL_S)


def show_next(
    client: AdminClient,
    document: dict[str, Any],
    now: dict[str, Any] | None,
    readings: deque[tuple[float, dict[str, Any]]],
) -> None:
    """Print the next table of --watch, over the time since the oldest reading, and keep `now` among them."""
    before, seconds = None, None
    if now is not None:
        if readings:
            began, before = readings[0]
            seconds = monotonic() - began
        readings.append((monotonic(), now))
    if sys.stdout.isatty():
        click.echo(CLEAR, nl=False)
    client.show(lambda: [*lines_of(document, now, before, seconds), ""])


def lines_of(
    document: dict[str, Any],
    now: dict[str, Any] | None = None,
    before: dict[str, Any] | None = None,
    seconds: float | None = None,
) -> list[str]:
    """Format the status of a balancer or a sidecar for a terminal. `now` and `before` are readings of /-/latency,
    `seconds` apart; without them the columns of requests are since the start.
    """
    state = "draining, up" if document["draining"] else "up"
    lines = [
        f"steelyard {document['version']} ({document['build']}) {state} for {document['uptime']:.0f} s",
        f"clients {document['clients']}, {counts_line(document)}",
    ]
    if len(document.get("listeners", ())) > 1:
        lines += [
            f"listener {each['name']}: {each['url']}, {each['target']}" for each in document["listeners"]
        ]
    lines += problem_lines(document)
    if "policy" in document:
        is_used = document["endpoints"] or "clusters" not in document
        lines += cluster_lines(document, now if is_used else None, before, seconds or document["uptime"])
    for cluster in document.get("clusters", ()):
        counts, earlier = (
            next((each for each in (of or {}).get("clusters", ()) if each["name"] == cluster["name"]), None)
            for of in (now, before)
        )
        lines += ["", f"cluster {cluster['name']}: {counts_line(cluster)}"]
        lines += cluster_lines(cluster, counts, earlier, seconds or document["uptime"])
    for mirror in document.get("mirrors", ()):
        lines += ["", *mirror_lines(mirror)]
    for split in document.get("splits", ()):
        lines += ["", *split_lines(split)]
    for origin in document.get("origins", ()):
        condition = origin["endpoint"]["condition_text"] if origin["endpoint"] else "–"
        lines.append(
            f"{origin['id']:<24} {condition}, requests {origin['requests']}, retried {origin['retried']}, "
            f"errors: {_reasons(origin['errors'])}, {origin['url']}"
        )
    return lines


def problem_lines(document: dict[str, Any]) -> list[str]:
    """Format what an operator has to correct in the configuration and around it."""
    reload, log, shared, tracing = (
        document.get(name) or {} for name in ("reload", "access_log", "shared", "tracing")
    )
    lines = []
    if reload.get("problem"):
        lines.append(f"the last reload was refused: {reload['problem']}")
    if reload.get("waiting"):
        lines.append(f"only the next start changes: {', '.join(reload['waiting'])}")
    if log.get("dropped") or log.get("lost"):
        lines.append(f"access log: {log['dropped']} entries dropped, {log['lost']} lost")
    if shared.get("problem"):
        lines.append(f"{shared['store']} is lost: {shared['problem']}")
    if tracing.get("exporting") is False:
        lines.append(f"tracing: the collector takes no spans; {tracing['lost']} lost")
    return lines


def counts_line(document: dict[str, Any]) -> str:
    """Format the counts of requests of a balancer or of one of its clusters."""
    return (
        f"in flight {document['in_flight']}, queued {document.get('queued', 0)}, "
        f"requests {document['requests']}, retried {document.get('retried', 0)}, errors: {_reasons(document['errors'])}"
    )


def cluster_lines(
    document: dict[str, Any], now: Counts | None, before: Counts | None, seconds: float
) -> list[str]:
    """Format a cluster: its policy with files and faults, the last explained pick with what the endpoints would have
    cost, its health, and the table of its endpoints where `now` is given."""
    policy, last = document["policy"], document.get("explaining", {}).get("last")
    fault = f", last fault: {policy['last_fault']}" if policy["last_fault"] else ""
    lines = [f"policy {label_of(policy['name'])}, fallback picks {policy['fallback_picks']}{fault}"]
    lines += [
        f"  {file['path']}, version {file['version']}, loaded {file['loaded']}"
        for file in policy.get("files", ())
    ]
    if policy.get("differs"):
        lines.append("  processes have different policies or versions; reload to make them equal")
    if document.get("inference"):
        lines.append(inference_line(document["inference"]))
    if last:
        lines += ["last explained pick", *(f"  {line}" for line in last.splitlines())]
    lines.append(document["health"]["summary"])
    lines += [
        f"{source['problem']}; the endpoints that are known stay"
        for source in document.get("discovery", ())
        if source["problem"]
    ]
    return lines if now is None else [*lines, "", *endpoint_table(document, now, before, seconds)]


def inference_line(status: dict[str, Any]) -> str:
    """Format the status for a terminal."""
    prompts, tokens, output = (status[name] for name in ("prompts", "prompt_tokens", "output_tokens"))
    cached = f"{status['cached_tokens'] / tokens:.0%} cached" if tokens else "none cached"
    times = ", ".join(
        f"{name.upper()} p50 {_seconds(status[name]['p50'])} p99 {_seconds(status[name]['p99'])}"
        for name in ("ttft", "tpot")
    )
    unread = sum(status["unread"].values())
    return f"prompts {prompts}, unread {unread}, tokens {tokens} ({cached}), output {output}, {times}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{with_digits(value, 3)} s"


def mirror_lines(mirror: dict[str, Any]) -> list[str]:
    """Format a mirror of the status for a terminal."""
    lines = [
        f"mirror {mirror['name']}: share {with_digits(mirror['share'], 3)}, in flight {mirror['in_flight']}, "
        f"sent {mirror['sent']}, skipped: {_reasons(mirror['skipped'])}, failed: {_reasons(mirror['failed'])}"
    ]
    if mirror["compared"]:
        original, copy = mirror["latency"]["original"], mirror["latency"]["copy"]
        times = ", ".join(
            f"{name} {with_digits(original[name] * 1000, 3)} ms (copy {with_digits(copy[name] * 1000, 3)})"
            for name in ("p50", "p99")
        )
        same = mirror["same_class"] / mirror["compared"]
        lines.append(f"  compared {mirror['compared']}: same status class {same:.2%}, {times}")
    return lines


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {number}" for reason, number in counts.items()) or "none"


def split_lines(split: dict[str, Any]) -> list[str]:
    """Format a split of the status for a terminal."""
    shares = ", ".join(
        f"{each['name']} {with_digits(each['share'] * 100, 3)}% ({each['requests']} requests)"
        for each in split["clusters"]
    )
    notes = [f"by {split['by']}"] if split["by"] else []
    notes += [f"canary {split['canary']}"] if split["canary"] else []
    notes += ["changed since the configuration was read"] if split["changed"] else []
    lines = [f"split {split['route']}: {'; '.join((shares, *notes))}"]
    return [*lines, f"  {split['reason']}"] if split["reason"] else lines


@click.command("admin", short_help="Send an admin request to a running balancer.")
@click.argument("method", type=click.Choice(["get", "put", "post", "patch", "delete"], case_sensitive=False))
@click.argument("path")
@click.argument("body", required=False)
@connection_options
def admin(method: str, path: str, body: str | None, url: str | None, token: str | None) -> None:
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
    code, text = AdminClient(url, token).request(
        method.upper(), f"/-/{path.removeprefix('/-/').lstrip('/')}", document
    )
    click.echo(printable(text.decode(errors="replace").rstrip("\n")))
    if not 200 <= code < 300:
        sys.exit(1)


HEADS = ("endpoint", "region", "share", "in flight", "req/s", "p50 ms", "p99 ms", "errors", "condition")
LEFT = frozenset((0, 1, len(HEADS) - 1))
"""Columns of text; the others have numbers and are aligned to the right."""

SILENT = frozenset(("ok", "busy", "abandoned", "tunnelled"))
"""Outcomes that are no error of the endpoint."""


def endpoint_table(document: dict[str, Any], now: Counts, before: Counts | None, seconds: float) -> list[str]:
    """Return the lines of the table.

    `now` and `before` are readings of /-/latency that lie `seconds` apart; None: all since the start.
    """
    earlier = {each["id"]: each for each in before["endpoints"]} if before is not None else {}
    grown = {each["id"]: grown_by(each, earlier.get(each["id"])) for each in now["endpoints"]}
    total = sum(sum(outcomes.values()) for outcomes, _ in grown.values())
    rows: list[tuple[str, ...]] = [HEADS]
    for each in document["endpoints"]:
        outcomes, latency = grown.get(each["id"], ({}, Histogram()))
        number = sum(outcomes.values())
        errors = sum(count for kind, count in outcomes.items() if kind not in SILENT)
        rows.append((
            each["id"], each["region"], f"{number / total:.1%}" if total else "–", str(each["in_flight"]),
            f"{number / seconds:.1f}" if seconds > 0 else "–", _milliseconds(latency.quantile(0.5)),
            _milliseconds(latency.quantile(0.99)), str(errors), each["condition_text"],
        ))  # fmt: skip
    return aligned(rows)


def grown_by(now: Counts, before: Counts | None) -> tuple[dict[str, int], Histogram]:
    """Return the outcomes and latencies between two readings of an endpoint; all of `now` if counters have shrunk,
    because the balancer was started again.
    """
    outcomes, buckets = now["outcomes"], now["buckets"]
    if before is not None:
        fewer = [count - earlier for count, earlier in zip(buckets, before["buckets"], strict=True)]
        less = {kind: count - before["outcomes"].get(kind, 0) for kind, count in outcomes.items()}
        if min(fewer) >= 0 and min(less.values()) >= 0:
            outcomes, buckets = less, fewer
    return outcomes, Histogram.of(buckets, 0.0)


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows of equal length as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in LEFT else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else with_digits(seconds * 1000, 3)
