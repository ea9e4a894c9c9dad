"""Lines with chosen fields, logfmt and the combined format: values, escaping, errors of the configuration."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from balancer.config.schema.log import FURTHER_FIELDS, LOG_FIELDS, LogConfig
from balancer.config.warnings import logged_secrets
from balancer.errors import ConnectFailed, QueueTimeout
from balancer.http.h1.client import Client
from balancer.log.formats import NOT_CONNECTED, Context, Entry, Extra, fault_of
from balancer.log.journal import VALUE_LIMIT, ChosenFields
from balancer.log.json_lines import json_line
from balancer.log.lines import READ_FROM, VALUES, format_of
from tests.support.log_entries import changed, entry
from tests.support.root import ROOT

CONTEXT = Context(offset=1_700_000_000.0, sample="1")
TRACE = b"0af7651916cd43dd8448eb211c80319c"
HEAD = (
    b"GET /work HTTP/1.1\r\nHost: example.org\r\nuser-agent:  curl/8.5  \r\nReferer: https://a.example/\r\n"
    b"X-Foo: one\r\nx-foo: two\r\nX_Foo: forged\r\ntraceparent: 00-" + TRACE + b"-b7ad6b7169203331-01\r\n"
    b"X-Forwarded-For: 203.0.113.7, 10.0.0.2\r\n\r\n"
)
ANSWER = b"\r\nContent-Length: 2\r\nX-Bar: b a r\r\n"


def line_of(entry: Entry, context: Context = CONTEXT, **log: Any) -> str:
    """The line of an entry as the server makes it: with what the log asks for."""
    line, chosen = format_of(LogConfig.model_validate(log))
    if chosen is not None and entry.extra is None:
        entry = changed(entry, extra=chosen.extra(entry.head, ANSWER, "*://example.org/work"))
    return line(entry, context)


def test_every_field_is_computed_and_documented() -> None:
    page = (ROOT / "docs" / "access-log.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z_]+)` \| ", page[page.index("## Chosen fields") :], re.MULTILINE))
    assert {*VALUES, *READ_FROM} == {*LOG_FIELDS, *FURTHER_FIELDS}
    assert set(FURTHER_FIELDS) <= listed


@pytest.mark.parametrize(
    "logged",
    [
        entry(cluster="api", grpc_status="OK", sent_target=b"/x"),
        entry(fault=fault_of(ConnectFailed("a\x7fé")), connection=NOT_CONNECTED, cluster="api", grpc_status="-",
              sent_target=b"/\xff"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sample", ["1", "0.25"])
def test_chosen_fields_are_those_of_the_usual_line(logged: Entry, sample: str) -> None:
    context = Context(CONTEXT.offset, sample)
    usual = json_line(logged, context)
    chosen = line_of(logged, context, fields=LOG_FIELDS)
    assert json.loads(chosen) == json.loads(usual)
    assert list(json.loads(chosen)) == list(LOG_FIELDS)
    assert chosen.isascii()
    assert chosen[:-1].isprintable()


def test_absent_values() -> None:
    logged = entry(fault=fault_of(QueueTimeout("full")), status=0, endpoint=None, attempts=0, id=b"")
    absent = ["cluster", "endpoint", "service", "trace_id", "tls_version", "response:x", "request_id"]
    fields = [*absent, "attempts"]
    assert json.loads(line_of(logged, fields=fields)) == dict.fromkeys(absent) | {"attempts": 0}
    shown = "".join(f"{name}=- " for name in absent)
    assert line_of(logged, access="logfmt", fields=fields) == f"{shown}attempts=0\n"
    queued = entry(extra=None)  # without the chosen fields
    line, _ = format_of(LogConfig.model_validate({"fields": ["route", "request:x-foo", "user_agent"]}))
    assert json.loads(line(queued, CONTEXT)) == {"route": None, "request:x-foo": None, "user_agent": None}


def test_json_with_chosen_fields() -> None:
    """In the order asked for; names of fields in any case; several lines are one list."""
    logged = entry(head=HEAD, client=Client(b"::1", b"", b"https", tls_version="TLSv1.3"))
    names = ["status", "duration", "user_agent", "referer", "trace_id", "tls_version", "route",
             "request:X-Foo", "response:x-bar", "request:x-none"]  # fmt: skip
    assert line_of(logged, fields=names) == (
        '{"status":200,"duration":1.023000,"user_agent":"curl/8.5","referer":"https://a.example/",'
        f'"trace_id":"{TRACE.decode()}","tls_version":"TLSv1.3","route":"*://example.org/work",'
        '"request:x-foo":"one, two","response:x-bar":"b a r","request:x-none":null}\n'
    )


def test_logfmt() -> None:
    """The names and units of JSON; strings as in JSON, where they are not bare."""
    logged = entry(head=HEAD.replace(b"curl/8.5", b'a "b" \\ \xe9'))
    line = line_of(logged, access="logfmt", fields=["time", "path", "user_agent", "request:x-foo", "total"])
    assert line == (
        'time=2023-11-14T22:30:00.000000Z path=/work user_agent="a \\"b\\" \\\\ \\u00e9" '
        'request:x-foo="one, two" total=1.023000\n'
    )
    usual = line_of(logged, access="logfmt")
    assert re.findall(r"([a-z_]+)=", usual) == list(LOG_FIELDS)
    assert usual.startswith(
        "time=2023-11-14T22:30:00.000000Z end=ok reason=- detail=- method=GET path=/work "
    )


def test_combined() -> None:
    """Byte for byte that of nginx with $time_local in UTC."""
    assert line_of(entry(head=HEAD), access="combined") == (
        '10.0.0.2 - - [14/Nov/2023:22:30:00 +0000] "GET /work HTTP/1.1" 200 17 "https://a.example/" "curl/8.5"\n'
    )
    hostile = entry(target=b'/"\\ \xe9', head=b"x\r\nUser-Agent: \x1b[0m\r\n\r\n", status=404, bytes_out=0)
    assert line_of(hostile, access="combined") == (
        '10.0.0.2 - - [14/Nov/2023:22:30:00 +0000] "GET /\\x22\\x5C \\xE9 HTTP/1.1" 404 0 "-" "\\x1B[0m"\n'
    )
    refused = entry(method=b"", target=b"\x16\x03", head=b"", endpoint=None, is_http10=True)
    assert ' "\\x16\\x03" 200 17 "-" "-"\n' in line_of(refused, access="combined")
    assert ' "-" 200 17 "-" "-"\n' in line_of(changed(refused, target=b""), access="combined")


@pytest.mark.parametrize(
    ("seen", "address"),
    [
        (b"1.1.1.1, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
        (b"2001:db8::7, 10.0.0.2", "2001:db8::7"),
        (b"10.0.0.2", "10.0.0.2"),
        (b'x" 1 - - [, 10.0.0.2', "10.0.0.2"),
    ],
)
def test_combined_has_the_client_of_a_trusted_proxy(seen: bytes, address: str) -> None:
    """The address that the proxy has added, not what its client claims."""
    head = b"x\r\nX-Forwarded-For: " + seen + b"\r\n\r\n"
    trusted = Client(b"10.0.0.2", b"", is_trusted=True)
    assert line_of(entry(head=head, client=trusted), access="combined").startswith(f"{address} - - [")
    if address != "10.0.0.2":
        assert line_of(entry(head=head), access="combined").startswith("10.0.0.2 - - [")


# --- nothing can be forged

LOGFMT = re.compile(r'([^\s"=]+)=("(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-f]{4})*"|[^\s"=]+)(?: |\n)')
COMBINED = re.compile(r'(\S+) - - \[([^]]+)\] "([^"\\]|\\x[0-9A-F]{2})*" (\d{3}) (\d+) "([^"]*)" "([^"]*)"\n')
NAMES = ["time", "path", "user_agent", "request:x-a", "response:x-b", "referer", "end"]

values = st.binary(max_size=40) | st.text(alphabet='" \\\r\n\t=-{},:x\x7f\x85', max_size=12).map(
    lambda text: text.encode("latin-1")
)


def unescaped(value: str) -> bytes:
    """A value of the combined format as bytes."""
    return re.sub(r"\\x([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), value).encode("latin-1")


@given(path=values, agent=values, referer=values, field=values, answer=values)
def test_chosen_fields_cannot_be_forged(
    path: bytes, agent: bytes, referer: bytes, field: bytes, answer: bytes
) -> None:
    """Any bytes in any value: one line, the same fields, and every value reads back as it was."""
    extra = Extra(
        "", {b"user-agent": agent, b"x-a": field, b"referer": referer}, {b"x-b": answer, b"x-a": b"other"}
    )
    logged = entry(target=path, extra=extra)
    given = dict(zip(NAMES[1:-1], (path, agent, field, answer, referer), strict=True))
    for access in ("json", "logfmt", "combined"):
        line = line_of(logged, access=access, fields=[] if access == "combined" else NAMES)
        assert line.count("\n") == 1
        assert line[:-1].isascii()
        assert line[:-1].isprintable()
        if access == "json":
            found = json.loads(line, object_pairs_hook=list)
            assert [name for name, _ in found] == NAMES
            assert {name: (value or "").encode("latin-1") for name, value in found[1:-1]} == given
        elif access == "logfmt":
            assert LOGFMT.sub("", line) == ""
            pairs = [
                (name, json.loads(text) if text[0] == '"' else text) for name, text in LOGFMT.findall(line)
            ]
            assert [name for name, _ in pairs] == NAMES
            read = {
                name: (value if value != "-" or f'{name}="-"' in line else "") for name, value in pairs[1:-1]
            }
            assert {name: value.encode("latin-1") for name, value in read.items()} == given
        else:
            match = COMBINED.fullmatch(line)
            assert match is not None
            assert (unescaped(match[6]), unescaped(match[7])) == (referer, agent)


def test_values_are_bounded() -> None:
    chosen = ChosenFields([b"x-a"], [])
    head = b"x\r\n" + b"X-A: " + b"y" * 9000 + b"\r\n"
    assert chosen.extra(head * 3, b"").request == {b"x-a": b"y" * VALUE_LIMIT}


# --- the configuration


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ({"fields": ["time", "tiem"]}, "fields.1: must be request:NAME, response:NAME or one of attempts, bytes, "),
        ({"fields": ["request:"]}, "fields.0: must be request:NAME"),
        ({"fields": ["request:a b"]}, "fields.0: must be request:NAME"),
        ({"fields": ["query:a"]}, "got 'query:a'"),
        ({"fields": ["time", "end", "time"]}, "fields: 'time' is there twice"),
        ({"fields": ["request:X-A", "request:x-a"]}, "fields: 'request:x-a' is there twice"),
        ({"fields": ["time"], "access": "combined"}, "fields: needs access = 'json' or 'logfmt', got 'combined'"),
        ({"fields": ["time"], "access": "text"}, "fields: needs access = 'json' or 'logfmt', got 'text'"),
        ({"fields": [f"request:x-{number}" for number in range(65)]}, "at most 64 items"),
        ({"access": "apache"}, "'off', 'text', 'json', 'logfmt' or 'combined'"),
    ],
)  # fmt: skip
def test_bad_configuration(log: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LogConfig.model_validate(log)
    [problem] = caught.value.errors()
    place = "".join(f"{part}." for part in problem["loc"]).removesuffix(".")
    assert message in f"{place}: {problem['msg'].removeprefix('Value error, ')}".removeprefix(": ")


def test_fields_alone_turn_the_log_on() -> None:
    assert LogConfig.model_validate({"fields": ["time"], "path": "a"}).access == "json"
    assert LogConfig.model_validate({"fields": ["time"], "access": "off"}).access == "off"
    assert LogConfig.model_validate({"fields": ["time"], "access": "logfmt"}).access == "logfmt"


def test_usual_formats_ask_for_nothing() -> None:
    for log in (
        {"access": "text"},
        {"access": "json"},
        {"access": "logfmt"},
        {"fields": ["time", "tls_version"]},
    ):
        assert format_of(LogConfig.model_validate(log))[1] is None


def test_check_warns_of_credentials() -> None:
    secrets, others = (
        ["request:authorization", "response:set-cookie"],
        ["time", "response:authorization-info"],
    )
    warnings = [f"log.fields: {name} writes credentials to the access log" for name in secrets]
    assert logged_secrets([*others, *secrets]) == warnings
