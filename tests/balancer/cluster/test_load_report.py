"""Load reports in response fields: those of workers and of ORCA; a malformed one is ignored and counted."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.http.h1.load_report import SIZE_LIMIT, LoadReports, metrics_of
from policies.facts import ReportedLoad
from tests.support.admin_requests import metrics, status
from tests.support.http2_client import http2_client
from tests.support.log_entries import RecordingLog
from tests.support.stage import Stage
from tests.support.wire import get, post, response


def read(block: bytes) -> tuple[ReportedLoad | None, int]:
    """The load in a block, and the number of malformed fields."""
    reports = LoadReports()
    return reports.read(block), reports.malformed


def orca(report: bytes) -> tuple[ReportedLoad | None, int]:
    return read(b"\r\nServer: x\r\nendpoint-load-metrics: " + report + b"\r\n")


def number(field: int, value: float) -> bytes:
    """A double of a protobuf message."""
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def part(field: int, value: bytes) -> bytes:
    """Bytes or a message in a protobuf message."""
    return bytes([field << 3 | 2, len(value)]) + value


MESSAGE = (
    number(1, 0.4) + number(2, 0.8) + b"\x18\x90\x03" + number(6, 12.5) + number(7, 0.5)
    + part(4, part(1, b"bytes") + number(2, 7.0)) + part(5, part(1, b"disk") + number(2, 0.25))
    + part(8, part(1, b"in_flight") + number(2, 3.0)) + number(9, 0.5) + b"\xa5\x06abcd"
)  # fmt: skip
METRICS = {
    "cpu_utilization": 0.4, "mem_utilization": 0.8, "rps_fractional": 12.5, "eps": 0.5, "request_cost.bytes": 7.0,
    "utilization.disk": 0.25, "named_metrics.in_flight": 3.0, "application_utilization": 0.5,
}  # fmt: skip


def test_complete_report() -> None:
    block = b"\r\nDate: x\r\nX-Worker-In-Flight: 3\r\nx-worker-service-time:0.020100\r\nX-Worker-Utilization: 0.5\r\n"
    assert read(block) == (ReportedLoad(3, 0.0201, 0.5), 0)


def test_partial_report() -> None:
    assert read(b"\r\nX-Worker-Utilization: 1.25 ") == (ReportedLoad(None, None, 1.25), 0)


@pytest.mark.parametrize(
    ("block", "malformed"),
    [
        (b"", 0),
        (b"\r\nServer: x\r\n", 0),
        (b"\r\nX-Worker-Name: emea-0\r\n", 0),
        (b"\r\nX-Worker-In-Flight: many\r\n", 1),
        (b"\r\nX-Worker-Utilization: -1\r\n", 1),
        (b"\r\nX-Worker-Utilization: 1.2.3\r\n", 1),
        (b"\r\nX-Worker-In-Flight: nan\r\nX-Worker-Utilization: \r\n", 2),
        (b"\r\nNX-Worker-In-Flight: 3\r\n", 0),
        (b"\r\nendpoint-load-metrics-json: {}\r\n", 0),
        *(
            (b"\r\nX-Worker-%b: %b\r\n" % (name, value), 1)
            for name in (b"In-Flight", b"Service-Time", b"Utilization")
            for value in (b"99999999999999999999", b"1000001", b"1e5", b"nan", b"inf", b"-0", b"+1", b"0x1")
        ),
    ],
)
def test_invalid_report(block: bytes, malformed: int) -> None:
    assert read(block) == (None, malformed)


# --- ORCA


@pytest.mark.parametrize(
    "report",
    [
        b"TEXT " + b", ".join(b"%b = %r" % (name.encode(), value) for name, value in METRICS.items()),
        b"JSON " + json.dumps({
            "cpu_utilization": 0.4, "mem_utilization": "0.8", "rps_fractional": 12.5, "eps": 0.5,
            "request_cost": {"bytes": 7}, "utilization": {"disk": 0.25}, "named_metrics": {"in_flight": 3},
            "application_utilization": 0.5,
        }).encode(),
        b'JSON {"cpuUtilization":0.4,"memUtilization":0.8,"rpsFractional":12.5,"eps":0.5,"requestCost":{"bytes":7},'
        b'"utilization":{"disk":0.25},"namedMetrics":{"in_flight":3},"applicationUtilization":0.5}',
        b"BIN " + b64encode(MESSAGE),
        b"BIN " + b64encode(MESSAGE).rstrip(b"="),
    ],
)  # fmt: skip
def test_metrics_of_each_format(report: bytes) -> None:
    """The same in all; what is unknown or deprecated in the message is skipped."""
    assert metrics_of(report) == METRICS
    assert orca(report) == (ReportedLoad(3, None, 0.5), 0)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (b"cpu_utilization=0.3", ReportedLoad(None, None, 0.3)),
        (b"cpu_utilization=0.3,application_utilization=1.5", ReportedLoad(None, None, 1.5)),
        (b"cpu_utilization=0.3,application_utilization=0", ReportedLoad(None, None, 0.3)),
        (b"cpu_utilization=0", ReportedLoad(None, None, 0.0)),
        (b"cpu_utilization=0,utilization.a=0.2,utilization.b=0.7", ReportedLoad(None, None, 0.7)),
        (b"named_metrics.in_flight=4.0,named_metrics.service_time=0.02", ReportedLoad(4, 0.02, None)),
        (b"mem_utilization=0.9,rps_fractional=1e9,eps=3,unknown=-1", None),
    ],
)
def test_what_policies_read(text: bytes, load: ReportedLoad | None) -> None:
    assert orca(b"TEXT " + text) == (load, 0)


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"TEXT",
        b"TEXT cpu_utilization",
        b"TEXT cpu_utilization=high",
        b"TEXT cpu_utilization=-0.1",
        b"TEXT cpu_utilization=nan",
        b"TEXT cpu_utilization=1_0",
        b'JSON {"cpu_utilization": "1_0"}',
        'JSON {"cpu_utilization": "٣"}'.encode(),
        b"TEXT application_utilization=inf",
        b"TEXT cpu_utilization=1000001",
        b"TEXT cpu_utilization=0.5,\xe9=1",
        b"text cpu_utilization=0.5",
        b"XML cpu_utilization=0.5",
        b"JSON 0.5",
        b"JSON [0.5]",
        b'JSON {"cpu_utilization": true}',
        b'JSON {"cpu_utilization": null}',
        b'JSON {"cpu_utilization": 0.5',
        b'JSON {"cpu_utilization": 1' + b"0" * 400 + b"}",
        b'JSON {"named_metrics": {"in_flight": []}}',
        b"JSON " + b"[" * (SIZE_LIMIT - 5),
        b"BIN ***",
        b"BIN " + b64encode(MESSAGE[:5]),
        b"BIN " + b64encode(part(8, b"12345678")[:-1]),
        b"BIN " + b64encode(b"\x0b"),
        b"BIN " + b64encode(b"\x08" + b"\xff" * 11),
        b"BIN " + b64encode(number(9, float("inf"))),
        b"TEXT cpu_utilization=0.5," + b"a=1," * (SIZE_LIMIT // 4) + b"b=1",
    ],
)
def test_malformed_report_of_orca(report: bytes) -> None:
    """Ignored and counted; what the worker says in other fields still counts."""
    assert orca(report) == (None, 1)
    assert orca(report + b"\r\nX-Worker-Utilization: 0.5") == (ReportedLoad(None, None, 0.5), 1)


def test_first_report_counts() -> None:
    first = b"\r\nX-Worker-Utilization: 0.1\r\n"
    block = first + b"Endpoint-Load-Metrics: TEXT cpu_utilization=0.2,named_metrics.in_flight=1"
    more = (
        b"\r\nX-Worker-In-Flight: 9\r\nendpoint-load-metrics: TEXT nonsense\r\nX-Worker-Service-Time: 3\r\n"
    )
    assert read(block + more) == (ReportedLoad(1, 3.0, 0.1), 0)


@given(
    form=st.sampled_from([b"TEXT ", b"JSON ", b"BIN ", b""]),
    data=st.binary(max_size=60),
    is_base64=st.booleans(),
)
def test_any_bytes_are_a_report_or_malformed(form: bytes, data: bytes, is_base64: bool) -> None:
    """Nothing but a load within its bounds, or a count, comes out."""
    text = b64encode(data) if is_base64 else data.replace(b"\r", b"").replace(b"\n", b"")
    for name in (b"endpoint-load-metrics", b"endpoint-load-metrics-bin"):
        load, malformed = read(b"\r\n%b: %b%b\r\n" % (name, form, text))
        assert malformed <= 1
        assert load is None or all(value is None or 0 <= value <= 1e6 for value in load)


# --- a running server

BINARY = b"endpoint-load-metrics-bin: " + b64encode(MESSAGE)


async def log_of(stage: Stage, *fields: bytes, trailers: bytes = b"", **settings: Any) -> RecordingLog:
    """A log of the loads that a policy learns of responses with these fields and trailers."""
    chunked = b"HTTP/1.1 200 OK\r\n%bTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n%b\r\n"
    lines = b"".join(field + b"\r\n" for field in fields)
    worker = await stage.worker(chunked % (lines, trailers) if trailers else response(b"ok", *fields))
    await stage.serve(worker, policy="reported-load", **settings)
    stage.cluster.journal = log = RecordingLog()
    return log


@pytest.mark.parametrize(
    ("fields", "trailers"),
    [
        ([b"endpoint-load-metrics: TEXT application_utilization=0.5,named_metrics.in_flight=3"], b""),
        ([BINARY], b""),
        ([], BINARY + b"\r\n"),
        ([b"X-Worker-Utilization: 0.9"], BINARY + b"\r\n"),
    ],
)
async def test_report_reaches_the_policy_and_no_client(
    stage: Stage, fields: list[bytes], trailers: bytes
) -> None:
    """In fields or trailers; `headers.internal` removes them for clients."""
    internal = {"internal": ["endpoint-load-metrics*", "x-worker-*"]}
    log = await log_of(stage, *fields, trailers=trailers, headers=internal)
    client = await stage.sending(get(b"/", b"Connection: close"))
    received = await client.rest()
    answer = await (await http2_client(stage)).ask()
    assert [entry.load for entry in log.entries] == [ReportedLoad(3, None, 0.5)] * 2
    assert b"ok" in received
    assert b"load" not in received.lower()
    assert not [name for name in (*answer.head, *answer.trailers) if b"load" in name]


async def test_malformed_report_is_counted(stage: Stage) -> None:
    """The response is passed on; status and metrics tell of it, also where a head repeats the last one."""
    log = await log_of(stage, b"endpoint-load-metrics: TEXT cpu=high")
    for _ in range(2):
        assert (await stage.ask(post(b"x"))).status == 200
    assert [entry.load for entry in log.entries] == [None, None]
    assert (await status(stage))["load_reports"] == {"malformed": 2}
    assert "\nsteelyard_malformed_load_reports_total 2.0\n" in await metrics(stage)
