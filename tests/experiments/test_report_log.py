"""`experiments report`: both formats of the access log, errors by line, runs, and reports."""

from __future__ import annotations

import gzip
import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from balancer.config.schema.log import LogConfig
from balancer.errors import CLIENT_LEFT, ConnectFailed, ForwardingError, QueueTimeout, RequestRejected
from balancer.http.h1.client import Client
from balancer.log.formats import NEW, NOT_CONNECTED, Context, Entry, Extra, fault_of, text_line
from balancer.log.json_lines import json_line
from balancer.log.lines import format_of
from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.recorded.access_log import KINDS, LEFT_OUT, NEEDED, log_row, read_log
from experiments.report.access_log import ending_table, log_runs, write_log_report
from experiments.report.charts import latency_charts
from experiments.run_data import Kind
from experiments.stats.measures import success_latency
from policies.facts import Endpoint
from tests.support.command_line import complaint, run_in_process
from tests.support.log_entries import changed
from tests.support.root import ROOT

PAGE = (ROOT / "docs" / "access-log.md").read_text(encoding="utf-8")
SAMPLES = re.findall(r"^(?:time=|\{\"time\").*$", PAGE, re.MULTILINE)
CONTEXT = Context(1_700_000_000.0, "0.5")


def entry(at: float = 1000.0, error: ForwardingError | None = None, **changes: Any) -> Entry:
    """A request of 30 ms, of which 20 ms are service."""
    usual = Entry(
        at + 0.03, fault_of(error), 200, b"GET", b"/", b"id", b"x\r\nHost: a\r\n", False, Client(b"1.2.3.4", b""),
        Endpoint("emea-0", "", "emea"), 1, NEW, (0.0, at), at + 0.004, at + 0.01, at + 0.025, 1, 2, policy="random",
    )  # fmt: skip
    return changed(usual, **changes)


ENTRIES = {
    "ok": entry(),
    "not found": entry(status=404),
    "error": entry(status=503),
    "refused": entry(error=ConnectFailed("no"), status=0, connection=NOT_CONNECTED),
    "left": entry(error=CLIENT_LEFT, status=0, first_byte_at=None),
    "queue": entry(error=QueueTimeout("full"), status=0, endpoint=None, attempts=0),
    "rejected": entry(error=RequestRejected(400, "bad", 'a "quote" end=ok'), status=0, endpoint=None),
    "hostile": entry(
        target=b'/" end=reset total=9ms \n{"time', id=b'x" policy="y', head=b"x\r\nHost: end=ok\r\n"
    ),
}


# --- writer and reader


@pytest.mark.parametrize("name", ENTRIES)
def test_all_formats_give_the_same_row(name: str) -> None:
    """Formatted by the balancer itself; a hostile field that is chosen changes nothing."""
    usual, _ = format_of(LogConfig(access="logfmt"))
    chosen, _ = format_of(LogConfig(access="logfmt", fields=("request:x-a", *NEEDED)))
    hostile = Extra("", {b"x-a": b'1 end=reset total="9 queue=" sample=2'}, {})
    lines = [line(ENTRIES[name], CONTEXT) for line in (text_line, json_line, usual)]
    lines.append(chosen(changed(ENTRIES[name], extra=hostile), CONTEXT))
    text, *others = map(log_row, lines)
    for other in others:
        assert [shown(value) for value in text] == [shown(value) for value in other]
    assert text.end in KINDS
    assert (text.policy, text.sample, text.at) == ("random", 0.5, 1_700_001_000.0)


def shown(value: object) -> str:
    """To a nanosecond, and nan like itself."""
    return f"{value:.9f}" if isinstance(value, float) else str(value)


def test_row_of_a_line() -> None:
    """Phases in seconds."""
    row = log_row(text_line(entry(), CONTEXT))
    assert (row.end, row.reason, row.status, row.endpoint, row.region) == ("ok", "", 200, "emea-0", "emea")
    assert [round(value, 6) for value in row[8:13]] == [0.004, 0.006, 0.015, 0.02, 0.03]
    assert math.isnan(log_row(json_line(ENTRIES["refused"], CONTEXT)).service)


def test_the_lines_in_the_documentation_are_read() -> None:
    """With the fields of its table and no others."""
    rows = [log_row(line) for line in SAMPLES]
    assert [row.end for row in rows] == ["ok", "refused", "ok", "ok"]
    assert list(map(shown, rows[0])) == list(map(shown, rows[2])) == list(map(shown, rows[3]))
    listed = re.findall(r"^\| (?:`(\w+)`)? ?\| (?:`(\w+)`)? ?\|", PAGE, re.MULTILINE)
    text, plain = {name for name, _ in listed if name}, {name for _, name in listed if name}
    some = {"cluster", "grpc_status", "sent_path"}  # with named clusters, of RPCs, and of rewritten targets
    assert set(json.loads(json_line(entry(), CONTEXT))) == plain - some == set(json.loads(SAMPLES[2]))
    assert (
        set(json.loads(json_line(entry(cluster="api", grpc_status="OK", sent_target=b"/x"), CONTEXT)))
        == plain
    )
    failed = text_line(ENTRIES["refused"], CONTEXT)
    assert set(re.findall(r"(?:^| )([a-z_]+)=", failed)) == text - some
    failed = text_line(
        changed(ENTRIES["refused"], cluster="api", grpc_status="UNAVAILABLE", sent_target=b"/x"), CONTEXT
    )
    assert set(re.findall(r"(?:^| )([a-z_]+)=", failed)) == text


def test_the_documented_ends_are_the_known_ones() -> None:
    section = PAGE[PAGE.index("| `end` | |") :]
    endings = re.findall(r"^\| `([a-z_]+)` \| ", section[: section.index("\n\n")], re.MULTILINE)
    assert set(endings) - {"end"} == {*KINDS, *LEFT_OUT}


def test_prefixes_of_platforms_are_skipped() -> None:
    """As `heroku logs` and syslog write them."""
    line = text_line(entry(), CONTEXT)
    assert log_row("2026-01-31T12:00:00.000000+00:00 app[web.1]: " + line) == log_row(line)


# --- mistakes

GOOD = text_line(entry(), CONTEXT)
MOST = [name for name in NEEDED if name not in ("queue", "connect")]
FEW, FEW_OF_LOGFMT, COMBINED = (
    format_of(LogConfig.model_validate(log))[0](entry(), CONTEXT)
    for log in ({"fields": MOST}, {"fields": MOST, "access": "logfmt"}, {"access": "combined"})
)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("hello\n", "is not a line of an access log"),
        ("{nonsense\n", "is not JSON: "),
        ("{}\n", "has no field 'time', 'end', 'reason', "),
        (FEW, "has no field 'queue', 'connect': log.fields must have all that a report needs"),
        (FEW_OF_LOGFMT, "has no field 'queue', 'connect': log.fields must have all that a report needs"),
        (COMBINED, "is of the combined format, which has no times; log.access must be json, text or logfmt"),
        (GOOD.replace(" total=", " tota="), "has no field 'total'"),
        (GOOD.replace("total=30.000ms", "total=30"), "total: must be a duration such as 21.345ms, got '30'"),
        (GOOD.replace("end=ok", "end=well"), "end: must be one of ok, "),
        (GOOD.replace("status=200", "status=x"), "status: must be a whole number from 0 to 999, got 'x'"),
        (GOOD.replace("sample=0.5", "sample=0"), "sample: must be from 1e-9 to 1, got '0'"),
        (GOOD.replace("time=2023", "time=x"), "time: must be as 2026-01-31T12:00:00.000000Z, got 'x-"),
        (GOOD.replace("000000Z", "000000"), "time: must have a time zone"),
    ],
)
def test_unreadable_line_is_counted_and_named_with_its_field(line: str, problem: str) -> None:
    columns = read_log([GOOD, "\n", line, "other\n", GOOD], "a.log")
    assert (len(columns), columns.unreadable) == (2, 2)
    assert columns.first_problem.startswith("line 3: ")
    assert problem in columns.first_problem
    assert "\n" not in columns.first_problem
    with pytest.raises(BadInputError) as caught:
        read_log(["\n", "\n", line], "a.log")
    assert str(caught.value) == f"a.log: holds no request, and {columns.first_problem}"


@pytest.mark.usefixtures("unrendered")
def test_unreadable_lines_stand_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(GOOD * 3 + "hello\n")
    out = tmp_path / "new" / "report"
    done = run_in_process(cli, "experiments", "report", str(tmp_path / "a.log"), "--out", str(out))
    assert done.returncode == 0, done.stderr
    words = "1 line (25.00%) could not be read and is left out; the first is line 4: is not a line of an access log"
    assert words in " ".join(done.stdout.split())
    assert words in (out / "report.md").read_text(encoding="utf-8")


def test_lines_that_are_skipped() -> None:
    """Control requests, those that a route answered, the program's own lines, and an incomplete last line."""
    control = text_line(entry(endpoint=None, target=b"/-/status"), CONTEXT)
    answered = text_line(entry(endpoint=None), CONTEXT)
    columns = read_log(["balancer ready on http://…\n", control, answered, GOOD, GOOD[:50]], "a.log")
    assert (len(columns), columns.left_out) == (1, 2)
    with pytest.raises(BadInputError, match=r"a\.log: holds no request"):
        read_log([control], "a.log")


# --- columns and figures


def test_run_of_a_log() -> None:
    """Sorted by time, counted from the first request, with the answering and the failing endpoints."""
    lines = [
        text_line(entry(1002.0, endpoint=Endpoint("us-0", "", "us")), CONTEXT),
        text_line(ENTRIES["refused"], CONTEXT),
        text_line(entry(1001.0, policy="region-aware"), CONTEXT),
    ]
    log = log_runs(read_log(lines, "a.log"), "a.log")
    samples = log.whole.samples
    assert samples.scheduled_at.round(6).tolist() == [0, 1, 2]
    assert samples.kind.tolist() == [Kind.REFUSED, Kind.OK, Kind.OK]
    assert [place.worker for place in log.places] == ["emea-0", "us-0"]
    assert samples.worker.tolist() == [-1, 0, 1]
    assert log.place.tolist() == [0, 0, 1]
    assert samples.service_time.round(6).tolist()[1:] == [0.02, 0.02]
    assert {one.label: len(one.runs[0].samples) for one in log.by_policy()} == {
        "random": 2,
        "region-aware": 1,
    }
    assert [one.label for one in log.by_region()] == ["region emea", "region us"]


@pytest.mark.parametrize("names", [("queue",), ("refused", "left"), tuple(ENTRIES)], ids=len)
def test_reports_of_unusual_logs(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Only failures, no endpoint at all, and everything together."""
    log = log_runs(read_log([json_line(ENTRIES[name], CONTEXT) for name in names], "a.log"), "a.log")
    tables = write_log_report(log, tmp_path, "experiments report a.log")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert tables[0].rows[0][1].text == str(2 * len(names))
    assert "Only a share of 0.5 of what went well was logged" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)


@pytest.mark.parametrize(
    "parts", [(GOOD.encode(), gzip.compress(GOOD.encode())), (gzip.compress(GOOD.encode()), GOOD.encode())]
)
def test_a_log_that_is_compressed_in_part_is_refused(tmp_path: Path, parts: tuple[bytes, bytes]) -> None:
    """As of `cat access.log access.log.1.gz`."""
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(parts))
    assert "cannot be read: damaged, or compressed in part" in complaint(
        cli, "experiments", "report", str(log)
    )


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("is_piped", [False, True])
def test_compressed_log(tmp_path: Path, is_piped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated logs are."""
    log, out = tmp_path / "access.log.1", tmp_path / "out"
    log.write_bytes(gzip.compress((GOOD * 3).encode()))
    with log.open(encoding="ascii") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        done = run_in_process(cli, "experiments", "report", "-" if is_piped else str(log), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "6 requests from" in (out / "report.md").read_text(encoding="utf-8")
    log.write_bytes(log.read_bytes()[:-9])
    assert "access.log.1: cannot be read: damaged" in complaint(cli, "experiments", "report", str(log))


@pytest.mark.usefixtures("unrendered")
def test_line_of_a_sample_stands_for_several_requests(tmp_path: Path) -> None:
    """Failures are always logged; percentiles are of the lines."""
    failed = GOOD.replace("sample=0.5", "sample=1").replace("end=ok", "end=timeout")
    good = [GOOD.replace("sample=0.5", f"sample={share}") for share in ("0.1", "0.4")]
    (tmp_path / "a.log").write_text("".join([*good * 10, *[failed] * 5]), encoding="ascii")
    done = run_in_process(cli, "experiments", "report", str(tmp_path / "a.log"), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    words = "Only a share of 0.1 of what went well was logged"
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert words in " ".join(done.stdout.split())
    assert words in page
    assert "130 requests from a.log" in page
    assert "5 of 130 (3.8 %) requests failed" in page.replace("\xa0", " ")
    with (tmp_path / "a.log").open(encoding="ascii") as lines:
        log = log_runs(read_log(lines, "a.log"), "a.log")
    ended = {cells[0].text: [cell.text for cell in cells[2:]] for cells in ending_table(log).rows}
    assert ended == {"ok": ["125", "96.154"], "timeout": ["5", "3.846"]}
    assert len(success_latency([log.whole])) == 20
    reached = [max(line.values) for line in latency_charts([log.altogether()])[0].lines]
    assert reached == [pytest.approx(96.154, abs=1e-3)]


# --- the programs together


@contextmanager
def started(*command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One of our programs and its port, from the ready line; it ends with SIGTERM."""
    environment = {key: value for key, value in os.environ.items() if key != "PORT"}
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"ready on http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None
            yield process, int(found[1])
        finally:
            process.terminate()
            process.communicate(timeout=20)


def ask(port: int, number: int) -> int:
    """One request on a connection of its own; every tenth is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("TRACE" if number % 10 == 9 else "GET", f"/work?n={number}")
    status = connection.getresponse().status
    connection.close()
    return status


def log_of_a_run(folder: Path, access: str) -> Path:
    """40 requests before two regions; the log is moved away and begun anew after the first half of them."""
    folder.mkdir()
    path = folder / "access.log"
    config = folder / "balancer.toml"
    with ExitStack() as stack:
        ports = [
            stack.enter_context(started("workers", "serve", "--region", region, "--service", "fixed:1ms"))[1]
            for region in ("emea", "us")
        ]
        endpoints = "".join(
            f'[[endpoints]]\nid = "{region}-0"\nregion = "{region}"\naddress = "http://127.0.0.1:{port}"\n'
            for region, port in zip(("emea", "us"), ports, strict=True)
        )
        log = f'[log]\naccess = "{access}"\npath = "{path}"\n'
        config.write_text(f'listen = "127.0.0.1:0"\npolicy = "round-robin"\n{endpoints}{log}')
        process, port = stack.enter_context(started("balancer", "serve", "--config", str(config)))
        assert {ask(port, number) for number in range(20)} == {200, 405}
        while path.read_text().count("\n") < 20:
            time.sleep(0.01)
        path.rename(folder / "access.log.1")
        process.send_signal(signal.SIGHUP)
        while not path.exists():
            time.sleep(0.01)
        assert {ask(port, number) for number in range(20, 40)} == {200, 405}
    assert (folder / "access.log.1").read_text().count("\n") == 20
    whole = folder / "whole.log"
    whole.write_text((folder / "access.log.1").read_text() + path.read_text())
    return whole


@pytest.mark.second_tier
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["text", "json"])
def test_report_of_the_log_of_a_real_run(tmp_path: Path, name: str) -> None:
    """Through the command line: a table on the terminal, every request counted, figures with something in them.

    One comes as a file, the other through a pipe.
    """
    log = log_of_a_run(tmp_path / "logs", name)
    command = [sys.executable, "-m", "experiments", "report", "--out", str(tmp_path)]
    with log.open() as lines:
        done = subprocess.run(
            [*command, "-" if name == "json" else str(log)],
            stdin=lines, capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Report: {tmp_path}/report.html" in done.stdout
    assert re.search(r"\ball +40 +36 +4 +10\.00 ", done.stdout)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| emea-0 | 18 | 18 | 0 |" in markdown
    assert "| us-0 | 18 | 18 | 0 |" in markdown
    assert "| **rejected** | method_not_allowed | 4 | 10.000 |" in markdown
    figures = sorted((tmp_path / "figures").glob("*.png"))
    assert len(figures) == 5  # 40 requests do not support a line over time
    for figure in figures:
        pixels = imread(figure)[:, :, :3].reshape(-1, 3)
        assert len(np.unique(pixels.round(1), axis=0)) > 5, figure
        assert (pixels.mean(axis=1) < 0.9).mean() > 0.005, figure


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file or directory"), ("x\n", "line 1: is not a line of an access log")],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, content: str | None, message: str) -> None:
    """It names the file, and the line in it."""
    path = tmp_path / "a.log"
    if content is not None:
        path.write_text(content)
    line = complaint(cli, "experiments", "report", str(path))
    assert line.startswith(f"experiments: {path}: ")
    assert message in line
