"""Access logs of other proxies as recordings: lines as each proxy writes them, and the answer of what-if to one."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import isnan, nan
from pathlib import Path
from random import Random

import numpy as np
import pytest

from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.recorded.proxy_logs import FORMATS, LoggedRequest, read_proxy_logs
from experiments.recorded.recording import ENDS, ROW, RecordedEndpoint
from experiments.what_if.fit import fit_worker
from tests.experiments.tapes import what_if

AT = datetime(2026, 11, 28, 17, 0, 0, 123_000, tzinfo=UTC).timestamp()
W1 = "10.0.1.5:8080"
ENVOY = (
    '[2026-11-28T17:00:00.123Z] "GET /a HTTP/2" {status} - 154 0 226 {service} "10.0.35.28" "curl" "cc21" "shop" '
    '"{host}"'
)
ALB = (
    "https 2026-11-28T17:00:00.323000Z app/lb/50dc 192.0.2.7:2817 {target} {times} {status} 200 34 366 "
    '"GET https://shop:443/a HTTP/1.1" "curl" ECDHE TLSv1.2 arn "Root=1" "-" "-" 0'
)
TRAEFIK = {
    "StartUTC": "2026-11-28T17:00:00.123000456Z", "Duration": 21_000_000, "OriginDuration": 20_000_000,
    "DownstreamStatus": 200, "ServiceURL": "http://10.0.1.5:8080", "OriginStatus": 200,
}  # fmt: skip
NGINX = (
    'msec=1795885200.144 request_time=0.021 status={status} upstream_addr="{address}" '
    "upstream_connect_time={connect} upstream_response_time={taken}"
)
HAPROXY = (
    "haproxy[9]: 192.0.2.7:33317 [28/Nov/2026:17:00:00.120] front back/{server} {times} {status} 2750 - - ---- "
    '1/1/1/1/0 0/0 "GET /a HTTP/1.1"'
)
VARIABLES = {
    "msec": "1795885200.144", "request_time": "0.021", "status": "200", "upstream_addr": W1,
    "upstream_connect_time": "0.001", "upstream_response_time": "0.021",
}  # fmt: skip
ONE_TRY = NGINX.format(status=200, address=W1, connect="0.001", taken="0.021")
TWO_TRIES = NGINX.format(status=200, address=f"10.0.1.4:80, {W1}", connect="-, 0.001", taken="0.000, 0.021")
THREE_TRIES = NGINX.format(
    status=200,
    address=f"10.0.1.4:80, 10.0.1.3:80 : {W1}",
    connect="-, 0.001 : 0.001",
    taken="2.000, 0.500 : 0.021",
).replace("request_time=0.021", "request_time=2.521")
OWN = NGINX.format(status=404, address="-", connect="-", taken="-")
LINES = [
    ("nginx", ONE_TRY, LoggedRequest(AT, W1, 200, 0, 0.001, 0.02)),
    ("nginx", TWO_TRIES, LoggedRequest(AT, W1, 200, 0, 0.001, 0.02)),
    ("nginx", THREE_TRIES, LoggedRequest(AT - 2.5, W1, 200, 2.5, 0.001, 0.02)),
    ("nginx", json.dumps(VARIABLES), LoggedRequest(AT, W1, 200, 0, 0.001, 0.02)),
    ("nginx", OWN, LoggedRequest(AT, "", 404, 0, 0, nan)),
    (
        "haproxy",
        HAPROXY.format(server="w1", times="3/2/1/19/26", status=200),
        LoggedRequest(AT, "w1", 200, 0.002, 0.001, 0.02),
    ),
    (
        "haproxy",
        HAPROXY.format(server="<NOSRV>", times="3/-1/-1/-1/+3", status=503),
        LoggedRequest(AT, "", 503, 0, 0, 0),
    ),
    (
        "envoy",
        ENVOY.format(status=200, service=20, host=f"tcp://{W1}"),
        LoggedRequest(AT, W1, 200, 0, 0, 0.02),
    ),
    ("envoy", ENVOY.format(status=503, service="-", host="-"), LoggedRequest(AT, "", 503, 0, 0, nan)),
    (
        "alb",
        ALB.format(target=W1, times="0.180 0.019 0.001", status=200),
        LoggedRequest(AT, W1, 200, 0.18, 0, 0.02),
    ),
    (
        "alb",
        ALB.format(target="-", times="-1 -1 -1", status=503),
        LoggedRequest(AT + 0.2, "", 503, 0, 0, nan),
    ),
    ("traefik", json.dumps(TRAEFIK), LoggedRequest(AT, W1, 200, 0, 0, 0.02)),
]


@pytest.mark.parametrize(("kind", "line", "expected"), LINES)
def test_line_of_each_format(kind: str, line: str, expected: LoggedRequest) -> None:
    found = FORMATS[kind].read(line + "\n")
    assert found is not None
    assert (found.endpoint, found.status) == (expected.endpoint, expected.status)
    times, wanted = (found.at, *found[3:]), (expected.at, *expected[3:])
    assert times == pytest.approx(wanted, abs=2e-6, nan_ok=True)


FORGED = "status=500 request_time=9 msec=1 upstream_addr=10.6.6.6:80"
REPEATED = json.dumps(VARIABLES)[:-1] + ', "status": "500"}'


@pytest.mark.parametrize(
    "line",
    [
        f'request="GET /?{FORGED} HTTP/1.1" {ONE_TRY}', f'{ONE_TRY} agent=" {FORGED}"', f'{ONE_TRY} "{FORGED}"',
        f"{ONE_TRY} uri=/a?status=500", f"uri=/a?status=500 {ONE_TRY}", f"{ONE_TRY} {FORGED}", REPEATED,
    ],
)  # fmt: skip
def test_text_of_the_client_is_no_variable(line: str) -> None:
    assert FORMATS["nginx"].read(line) == FORMATS["nginx"].read(ONE_TRY)


def test_quotes_that_a_client_adds_do_not_move_the_fields_of_envoy() -> None:
    """Its lines do not escape them."""
    line = ENVOY.format(status=200, service=20, host=W1)
    assert FORMATS["envoy"].read(line.replace('"curl"', '"a" "b" "c" "10.6.6.6:80"')) is None


HAPROXY_LINE = HAPROXY.format(server="w1", times="3/2/1/19/26", status=200)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("nginx", NGINX.format(status=499, address=W1, connect="0.001", taken="0.021")),
        ("haproxy", HAPROXY_LINE.replace("----", "CD--")),
        ("haproxy", HAPROXY_LINE.replace("----", "cD--")),
        ("envoy", ENVOY.format(status=0, service=20, host=W1).replace(" - 154", " UF,DC 154")),
        ("alb", ALB.format(target=W1, times="0.180 0.019 -1", status=460)),
        ("traefik", json.dumps(TRAEFIK | {"DownstreamStatus": 499})),
    ],
)
def test_client_that_left_is_abandoned(kind: str, line: str, tmp_path: Path) -> None:
    """It is no success, and its time is the patience of the client."""
    log = tmp_path / "log"
    log.write_text(f"{line}\n", encoding="utf-8")
    found = read_proxy_logs([log], FORMATS[kind], [], {"name": "random"}).recording
    assert [ENDS[end] for end in found.rows["end"]] == ["abandoned"]


@pytest.mark.parametrize(
    ("kind", "own", "failed"),
    [
        ("nginx", OWN, OWN.replace("=404", "=502")),
        (
            "haproxy",
            HAPROXY.format(server="<NOSRV>", times="0/-1/-1/-1/0", status=301).replace("----", "LR--"),
            HAPROXY.format(server="<NOSRV>", times="3/-1/-1/-1/+3", status=503),
        ),
        *(
            (kind, line.replace("=status", "301"), line.replace("=status", "503"))
            for kind, line in (
                ("envoy", ENVOY.format(status="=status", service="-", host="-")),
                ("alb", ALB.format(target="-", times="-1 -1 -1", status="=status")),
                ("traefik", json.dumps({"StartUTC": TRAEFIK["StartUTC"], "DownstreamStatus": "=status"})),
            )
        ),
    ],
)
def test_what_the_proxy_answered_itself_is_no_work_of_a_worker(
    kind: str, own: str, failed: str, tmp_path: Path
) -> None:
    """A redirect, or a cached answer; where it had no worker, the request failed."""
    good = next(line for name, line, _ in LINES if name == kind)
    log = tmp_path / "log"
    log.write_text(f"{own}\n{good}\n{failed}\n{own}\n", encoding="utf-8")
    found = read_proxy_logs([log], FORMATS[kind], [], {"name": "random"})
    assert sorted(ENDS[end] for end in found.recording.rows["end"]) == ["error_status", "ok"]
    assert (found.others, found.own) == (0, 2)
    log.write_text(f"{own}\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"log: holds no request in this format that a worker got"):
        read_proxy_logs([log], FORMATS[kind], [], {"name": "random"})


def test_compressed_logs_are_read(tmp_path: Path) -> None:
    """By how they begin, whatever they are called; members may follow each other, as `cat a.gz b.gz` leaves them."""
    packed = gzip.compress(f"{ONE_TRY}\n".encode())
    logs = [tmp_path / name for name in ("a.log", "a.log.1")]
    for log, content in zip(logs, (f"{ONE_TRY}\n".encode(), packed + packed), strict=True):
        log.write_bytes(content)
    found = read_proxy_logs(logs, FORMATS["nginx"], [], {"name": "random"})
    assert (len(found.recording), found.others) == (3, 0)
    logs[1].write_bytes(packed[:-9])
    with pytest.raises(BadInputError, match=r"a\.log\.1: cannot be read: damaged"):
        read_proxy_logs(logs, FORMATS["nginx"], [], {"name": "random"})


@pytest.mark.parametrize("kind", FORMATS)
def test_line_of_another_program_is_no_request(kind: str) -> None:
    """Nor is that of another format."""
    for line in ("", "started\n", '192.0.2.7 - - [28/Nov/2026:17:00:00 +0000] "GET / HTTP/1.1" 200 5\n'):
        assert FORMATS[kind].read(line) is None


def test_haproxy_connection_without_a_whole_request_is_no_request() -> None:
    line = HAPROXY.format(server="<NOSRV>", times="-1/-1/-1/-1/24986", status=400)
    assert FORMATS["haproxy"].read(line) is None


OPTIONS = ("--format", "nginx", "--region", "eu=10.0.1.", "--region", "us=10.0.2.")


def log_of(path: Path, number: int = 4000) -> Path:
    """Requests of two regions by turns, 5 and 50 ms away, 100 a second, exponential 20 ms, without a wait."""
    rng, at, lines = Random(1), 1_795_885_200.0, []
    for one in range(number):
        at += rng.expovariate(100)
        address, far = ("10.0.1.1:80", 0.005) if one % 2 else ("10.0.2.1:80", 0.05)
        connect = far if one % 50 < 2 else 0.0
        taken = connect + far + rng.expovariate(50)
        lines.append(
            f'msec={at + taken:.3f} request_time={taken:.3f} status=200 upstream_addr="{address}" '
            f"upstream_connect_time={connect:.3f} upstream_response_time={taken:.3f}\n"
        )
    path.write_text("".join(["nginx: started\n", *lines, f"{OWN}\n" * 9]), encoding="utf-8")
    return path


def test_what_if_of_an_nginx_log(tmp_path: Path) -> None:
    """Distance by region comes from handshakes; what the format cannot tell is said first."""
    log = log_of(tmp_path / "access.log")
    output, answer = what_if(log, *OPTIONS, "--policy", "steelyard", "--slots", "8", "--blocks", "2")
    assert output.startswith("A log of nginx tells milliseconds only;")
    assert "1 lines are no requests in this format" in output
    assert "9 requests are left out: nginx answered them itself" in output
    assert answer["lines"][0]["failed"] == 0
    assert {each["region"]: each["rtt"] for each in answer["regions"]} == pytest.approx(
        {"eu": 0.005, "us": 0.05}, abs=1e-3
    )
    recorded, simulated, chosen = answer["lines"]
    assert (recorded["label"], chosen["label"]) == ("round-robin", "steelyard")
    assert simulated["mean"] == pytest.approx(recorded["mean"], rel=0.1)
    assert chosen["mean"] < 0.8 * simulated["mean"]
    assert not isnan(chosen["p99"])


def test_round_trips_that_no_handshake_shows_are_given(tmp_path: Path) -> None:
    """Without them distance counts as service."""
    log = log_of(tmp_path / "access.log")
    hidden = re.sub(r"connect_time=\S+", "connect_time=0.000", log.read_text(encoding="utf-8"))
    log.write_text(hidden, encoding="utf-8")
    given = ("--round-trip", "5ms", "--round-trip", "us=50ms")
    warning = "us: handshakes took 0 ms, and no request was served in less than 21 ms."
    fitted = []
    for options in ((), given):
        output, answer = what_if(log, *OPTIONS, *options, "--blocks", "1")
        assert (warning in output) == (not options)
        regions = answer["regions"]
        fitted.append({each["region"]: (each["rtt"], each["slots"], each["service"]) for each in regions})
    hidden_, stated = fitted
    assert [hidden_["us"][0], stated["eu"][0], stated["us"][0]] == pytest.approx([0, 0.005, 0.05])
    assert stated["us"][1] < hidden_["us"][1]
    assert stated["us"][2].startswith("exponential:2")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--format", "nginx", "access.log"), "RECORDING: a file is named twice"),
        (("--format", "haproxy"), "holds no request in this format; see --format"),
        (("--format", "nginx", "--region", "eu"), "--region: must be NAME=START"),
        (
            ("--format", "nginx", "--region", "zz=99."),
            "--region: 'zz' has no worker whose name or address begins '99.'",
        ),
        (
            ("--format", "nginx", "--region", "eu=10.", "--region", "us=10.0."),
            "--region: 'eu' has no worker whose name or address begins '10.' and no longer START",
        ),
        (
            ("--format", "nginx", "--region", "us=10.", "--region", "us=172."),
            "--region: 'us' has no worker whose name or address begins '172.'",
        ),
        (("--format", "nginx", "--placed-by", "nonsense"), "--placed-by: unknown policy 'nonsense'"),
        (("--region", "eu=10."), "--region: is for a log"),
        (("--round-trip", "5ms"), "--round-trip: is for a log"),
        (("--format", "nginx", "--round-trip", "us=5ms"), "--round-trip: unknown 'us'; known: here"),
        (("--format", "nginx", "--round-trip", "soon"), "--round-trip: must be a duration such as"),
        (("--format", "nginx", "--round-trip", "-5ms"), "--round-trip: must be a duration such as"),
        (
            ("--format", "nginx", "--slots", "8", "--without-region", "eu"),
            "--without-region: unknown 'eu'; known: here",
        ),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, options: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=re.escape(complaint)):
        cli.main(["what-if", str(log_of(tmp_path / "access.log", 200)), *options], standalone_mode=False)


def test_worker_serves_as_many_at_a_time_as_it_did_on_average() -> None:
    """Noise that grows with the requests in flight looks like waiting from the second on."""
    rows = np.zeros(2000, dtype=ROW)
    rows["at"] = np.arange(2000) * 0.01
    rows["service"] = np.where(np.arange(2000) % 4, 0.05, 0.03)
    rows["reported"] = nan
    worker = fit_worker(RecordedEndpoint("a", "here", 1.0, 0.0), rows)
    assert worker is not None
    busy = float((rows["at"] + rows["service"]).max())
    assert worker.slots >= worker.service.sum() / busy
    assert worker.slots >= 4


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
@pytest.mark.parametrize("busy", [0.5, 0.95])
def test_capacity_of_a_worker_that_reports_nothing(slots: int, busy: float) -> None:
    """Exponential, 20 ms, logged in whole milliseconds; most requests of the busier worker wait."""
    rng = np.random.default_rng(slots)
    begin, service = np.cumsum(rng.exponential(0.02 / slots / busy, 4000)), rng.exponential(0.02, 4000)
    free, end = [0.0] * slots, np.empty(4000)
    for one in range(4000):
        end[one] = max(begin[one], heappop(free)) + service[one]
        heappush(free, end[one])
    rows = np.zeros(4000, dtype=ROW)
    rows["at"], rows["reported"] = np.floor(1e3 * begin) / 1e3, nan
    rows["service"] = np.floor(1e3 * (end + 0.05)) / 1e3 - rows["at"]
    worker = fit_worker(RecordedEndpoint("a", "here", 1.0, 0.05), rows)
    assert worker is not None
    assert abs(worker.slots - slots) <= (slots > 2)
    assert worker.slots / worker.mean == pytest.approx(slots / service.mean(), rel=0.15)
