"""Report of a probe for a terminal. This module makes no decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, fields

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from balancer.tools.probe.findings import Findings, KeepAliveFindings, Timing


def show(findings: Findings, advice: str, console: Console) -> None:
    """Print the findings and the recommended configuration."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    for name, value in rows(findings):
        table.add_row(name, Text(value))
    console.print(table)
    if findings.phases is not None:
        console.print(phase_table(findings))
    console.print(Text("Recommended:\n", style="bold"))
    console.print(Text(advice), soft_wrap=True)
    console.print(
        f"Asked with {findings.requests} requests on {findings.connections} connections.", style="dim"
    )


def rows(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield label and text of each finding."""
    target = findings.target
    where = f" at {findings.address}" if findings.address not in (None, target.host) else ""
    yield "server", f"{target.origin}{where}{f' ({findings.server})' if findings.server else ''}"
    if findings.status is not None:
        yield "answer", f"status {findings.status}"
    yield "HTTP", versions(findings)
    if findings.tls is not None:
        yield "TLS", f"{findings.tls.version}, {findings.tls.cipher}"
        yield "sessions", resumption(findings.tls.resumes)
        if findings.tls.expires is not None:
            yield "certificate", f"until {findings.tls.expires}"
    if findings.keep_alive is not None:
        yield from keep_alive(findings.keep_alive)
    yield "cookies", ", ".join(findings.cookies) or "none"


def versions(findings: Findings) -> str:
    """Format the HTTP versions that the server speaks."""
    first = f"{findings.version}" if findings.version else "not 1.1"
    second = findings.http2
    if second is None:
        return first
    if not second.is_spoken:
        return f"{first}; not 2: {(second.problem or '').removeprefix('HTTP/2: ')}"
    return f"{first} and 2{f', {second.streams} requests at once' if second.streams else ''}"


def resumption(resumes: bool | None) -> str:
    """Format whether TLS sessions are resumed."""
    return {True: "resumed", False: "not resumed: each handshake is a full one", None: "not found out"}[
        resumes
    ]


def keep_alive(kept: KeepAliveFindings) -> Iterator[tuple[str, str]]:
    """Yield label and text of the keep-alive findings."""
    if not kept.is_kept:
        yield "keep-alive", "no: one request for each connection"
        return
    hint = ", ".join(f"{name}={number}" for name, number in kept.hint.items())
    yield "keep-alive", f"yes{f' (it says {hint})' if hint else ''}"
    yield "requests", f"{kept.requests} on a connection{', then it ends' if kept.is_bounded else ' or more'}"
    if kept.idle is not None:
        yield "idle limit", idle_words(kept)


def idle_words(kept: KeepAliveFindings) -> str:
    """Format the idle limit."""
    idle = kept.idle
    if idle is None or idle.closed is None or idle.closed_longest is None:
        return "none" if idle is None else f"none within {idle.waited:g} s"
    if idle.is_silent:
        return (
            f"between {idle.kept:.1f} and {idle.closed:.1f} s, without a close: something on the way forgets"
        )
    if idle.is_random:
        return f"from {idle.closed:.1f} to {idle.closed_longest:.1f} s: no fixed time"
    return f"{idle.closed:.1f} s"


def phase_table(findings: Findings) -> Table:
    """Return the phases in milliseconds since the beginning, with curl's names."""
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, caption="milliseconds since the beginning", caption_justify="left"
    )
    table.add_column("")
    for column in fields(Timing):
        table.add_column(column.name, justify="right")
    phases = findings.phases
    if phases is not None:
        for name, timing in (("cold", phases.cold), ("again", phases.again), ("warm", phases.warm)):
            if timing is not None:
                table.add_row(name, *(f"{seconds * 1e3:.1f}" for seconds in astuple(timing)))
    return table
