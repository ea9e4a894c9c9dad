"""Lines of the access log: fields, units, escaping."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import (
    ConnectFailed,
    QueueTimeout,
)
from balancer.http.h1.client import Client
from balancer.log.formats import (
    HEAD_LIMIT,
    NOT_CONNECTED,
    REUSED,
    TARGET_LIMIT,
    Context,
    Entry,
    bare,
    excerpt,
    fault_of,
    outcome,
    phases,
    requested,
    text_line,
)
from balancer.log.json_lines import json_line, seconds_or_null
from balancer.log.lines import PHASES
from balancer.log.times import rounded
from tests.support.log_entries import ENDPOINT, HEAD, entry

CONTEXT = Context(offset=1_700_000_000.0, sample="1")


def test_text_line() -> None:
    """Names, order and units as documented."""
    assert text_line(entry(), CONTEXT) == (
        'time=2023-11-14T22:30:00.000000Z at=info method=GET path="/work" host=example.org request_id=abc-1 '
        'fwd="10.0.0.1, 10.0.0.2" dyno=emea-0 connect=2.000ms service=21.000ms status=200 bytes=17 '
        "protocol=http version=1.1 client=10.0.0.2 region=emea policy=region-aware attempts=1 connection=new "
        "head=0.000ms queue=1000.000ms first_byte=20.000ms total=1023.000ms bytes_in=0 sample=1 end=ok\n"
    )


def test_json_line() -> None:
    """The same values in seconds."""
    line = json_line(entry(), CONTEXT)
    assert line.endswith("}\n")
    assert json.loads(line) == {
        "time": "2023-11-14T22:30:00.000000Z",
        "end": "ok",
        "reason": None,
        "detail": None,
        "method": "GET",
        "path": "/work",
        "host": "example.org",
        "request_id": "abc-1",
        "client": "10.0.0.2",
        "forwarded_for": "10.0.0.1, 10.0.0.2",
        "protocol": "http",
        "version": "1.1",
        "endpoint": "emea-0",
        "region": "emea",
        "policy": "region-aware",
        "attempts": 1,
        "connection": "new",
        "head": 0.0,
        "queue": 1.0,
        "connect": 0.002,
        "first_byte": 0.02,
        "service": 0.021,
        "total": 1.023,
        "status": 200,
        "bytes": 17,
        "bytes_in": 0,
        "sample": 1,
    }


def test_text_line_of_a_failure() -> None:
    """`at=error` as on Heroku, with the reason as code; absent values are a hyphen."""
    failed = entry(
        fault=fault_of(ConnectFailed('Connection "refused"')), status=0, connection=NOT_CONNECTED, attempts=2
    )
    line = text_line(failed, CONTEXT)
    assert ' at=error code=connect_failed desc="Connection \\"refused\\"" method=GET ' in line
    assert " connect=23.000ms service=- status=502 " in line
    assert " attempts=2 connection=- " in line
    assert line.endswith(" end=refused\n")
    record = json.loads(json_line(failed, CONTEXT))
    assert (record["reason"], record["connection"], record["service"]) == ("connect_failed", None, None)


@pytest.mark.parametrize(("status", "end"), [(200, "ok"), (404, "ok"), (503, "error_status")])
def test_end_of_an_answered_request(status: int, end: str) -> None:
    """By its status; `test_endings.py` has the other ends."""
    assert outcome(entry(status=status)) == (end, status, 17)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (0.0, 1.0, 0.002, 0.02, 0.021, 1.023)),
        ({"arrived": (997.0, 1000.0)}, (3.0, 1.0, 0.002, 0.02, 0.021, 4.023)),
        ({"connection": REUSED, "sent_at": 1001.0}, (0.0, 1.0, 0.0, 0.022, 0.023, 1.023)),
        ({"connection": NOT_CONNECTED}, (0.0, 1.0, 0.023, None, None, 1.023)),
        ({"first_byte_at": None}, (0.0, 1.0, 0.002, None, 0.021, 1.023)),
        ({"endpoint": None}, (0.0, 1.023, None, None, None, 1.023)),
    ],
)
def test_phases(changes: dict[str, Any], expected: tuple[float | None, ...]) -> None:
    """head, queue, connect, first byte, service, total: None for a phase that was not reached."""
    spent = phases(entry(**changes))
    seen = [getattr(spent, name) for name in PHASES]
    assert [None if isnan(value) else round(value, 6) for value in seen] == list(expected)
    parts = [value for name, value in zip(PHASES, seen, strict=True) if name not in ("first_byte", "total")]
    assert sum(value for value in parts if not isnan(value)) == pytest.approx(spent.total)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "-"),
        ("-", '"-"'),
        ("a.b:80", "a.b:80"),
        ("[::1]:80", "[::1]:80"),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('a"b', '"a\\"b"'),
        ("a\\b", '"a\\\\b"'),
        ("a\nb", '"a\\x0ab"'),
        ("é\x7f\x1b[", '"\\xe9\\x7f\\x1b["'),
    ],
)
def test_escaping_of_text_values(value: str, expected: str) -> None:
    """Bare if unambiguous, else quoted and escaped."""
    assert bare(value) == expected


FIELD = re.compile(r' ?([a-z_]+)=("(?:[^"\\]|\\["\\]|\\x[0-9a-f]{2})*"|[^\s"\\]+)')
NAMES = FIELD.sub(r"\1 ", text_line(entry(), CONTEXT)).split()


@pytest.mark.parametrize("line", [text_line, json_line])
@given(data=st.tuples(*[st.binary(max_size=40)] * 4))
def test_lines_cannot_be_forged(line: Callable[[Entry, Context], str], data: tuple[bytes, ...]) -> None:
    """Any bytes in method, target, id and Host: one line with the same fields, all printable."""
    method, target, request_id, host = data
    head = b"x\r\nHost: %b\r\n\r\n" % host
    text = line(entry(method=method, target=target, sent_target=target, id=request_id, head=head), CONTEXT)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text[:-1].isascii()
    assert text[:-1].isprintable()
    if line is json_line:
        found = json.loads(text)
        assert found["path"] == found.get("sent_path") == (target.decode("latin-1") or None)
    else:
        assert FIELD.sub("", text) == "\n"
        assert [name for name, _ in FIELD.findall(text) if name != "sent_path"] == NAMES


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", (b"GET", b"/a")),
        (b"\r\nGET /a b HTTP/1.1\r\n", (b"GET", b"/a b")),
        (b"GET /unfinished", (b"GET", b"/unfinished")),
        (b"\x16\x03\x01\x02 \x00", (b"", b"\x16\x03\x01\x02 \x00")),
        (b"nonsense\r\n", (b"", b"nonsense")),
        (b"", (b"", b"")),
    ],
)
def test_target_of_a_rejected_head(head: bytes, expected: tuple[bytes, bytes]) -> None:
    """Method and target if they can be parsed, else the first line."""
    assert requested(head) == expected


def test_logged_bytes_are_bounded() -> None:
    """Whole lines from both ends of a long head; the beginning of a long rejected target."""
    long = (
        b"GET / HTTP/1.1\r\nHost: a\r\nCookie: "
        + b"X-Forwarded-For: forged " * 1000
        + b"\r\nX-Forwarded-For: b\r\n\r\n"
    )
    kept = excerpt(long)
    assert len(kept) <= HEAD_LIMIT
    assert [line.partition(b":")[0] for line in kept.split(b"\r\n")][1:3] == [b"Host", b"X-Forwarded-For"]
    assert b"forged" not in kept
    assert excerpt(HEAD) is HEAD
    assert len(requested(b"GET /" + b"a" * 9999)[1]) == TARGET_LIMIT


REPEATED: dict[str, list[Any]] = {
    "head": [
        HEAD,
        HEAD[:-2] + b"X-Request-ID: abc-1\r\n\r\n",
        HEAD.replace(b"example", b"other")[:-2] + b"X-Request-ID: abc-1\r\n\r\n",
        b"GET /work HTTP/1.1\r\nX-Forwarded-For: 10.9.9.9\r\nX-Request-ID: abc-1\r\n\r\n",
    ],
    "method": [b"GET", b"HEAD"],
    "target": [b"/work", b'/"\x7f\xe9'],
    "sent_target": [b"", b"/other"],
    "id": [b"abc-1", b"abc-2"],
    "has_own_id": [False, True],
    "is_http10": [False, True],
    "endpoint": [ENDPOINT, None, replace(ENDPOINT, region="us"), replace(ENDPOINT, id="us-1")],
    "policy": ["random", "p2c"],
    "cluster": ["", "api"],
    "connection": [REUSED, NOT_CONNECTED],
    "attempts": [1, 2],
    "status": [200, 404, 502],
    "bytes_out": [17, 18],
    "bytes_in": [0, 1],
    "grpc_status": ["", "OK", "UNAVAILABLE"],
    "fault": [None, fault_of(QueueTimeout("full")), fault_of(ConnectFailed("no"))],
    "arrived": [(0.0, 1000.0), (999.5, 1000.25)],
}


def test_line_does_not_depend_on_the_line_before() -> None:
    """Texts of a client's last line are used only where the next one has the same."""
    draw = Random(7)
    client, values = Client(b"10.0.0.2", b"10.0.0.9:80"), {name: some[0] for name, some in REPEATED.items()}
    for _ in range(5000):
        for name in draw.sample(list(REPEATED), draw.randrange(4)):
            values[name] = draw.choice(REPEATED[name])
        context = Context(1_700_000_000.0, draw.choice(["1", "0.5"]))
        fresh = entry(**values, client=Client(b"10.0.0.2", b"10.0.0.9:80"))
        place = fresh.endpoint
        if place is not None:
            fresh.endpoint = replace(place)  # another object, which no text is kept for
        expected = json_line(fresh, context)
        for _ in range(2):
            assert json_line(entry(**values, client=client), context) == expected


def test_numbers_are_rounded_as_python_rounds_them() -> None:
    draw = Random(7)
    halves = [number / 2**20 for number in range(0, 2**20, 977)] + [number / 2e6 for number in range(5000)]
    others = [draw.expovariate(10.0 ** draw.randrange(6)) for _ in range(20_000)]
    for seconds in (*halves, *others, 0.999999, 0.9999995, 1.0, 59.5, -1e-9, -0.5):
        assert seconds_or_null(seconds) == f"{seconds:.6f}"
        at = (seconds + 1_700_000_000.0) * 1e6
        assert rounded(at) == round(at)
    assert seconds_or_null(nan) == "null"
