"""`balancer probe` against real servers: findings, recommendations, errors."""

from __future__ import annotations

import asyncio
import json
import ssl
import tomllib
from contextlib import suppress
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.schema.endpoint import UpstreamTlsConfig
from balancer.configuration import load
from balancer.errors import UpstreamError
from balancer.tls.contexts import UpstreamTls
from balancer.tools.probe.connection import (
    Ending,
    IdleLimit,
    IdleRun,
    finer_idle_steps,
    head_in,
    idle_steps,
    limit_of,
)
from balancer.tools.probe.findings import (
    Findings,
    Http2Findings,
    KeepAliveFindings,
    ProbePhases,
    Timing,
    advice,
)
from balancer.tools.probe.survey import Bounds, Survey
from balancer.tools.probe.target import BadTarget, target_of
from tests.support.certificates import Shelf
from tests.support.stage import Stage
from tests.support.wire import Script, ScriptedWorker, Wire, answering, playing, response
from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings as WorkerSettings

SHORT = Bounds(idle=0.5, requests=5)
"""One idle step only, so that a survey is short."""


async def run_survey(url: str, bounds: Bounds = SHORT, ca: Path | None = None) -> Findings:
    reported: list[str] = []
    survey = Survey(target_of(url), bounds, UpstreamTls(UpstreamTlsConfig(ca=ca)), reported.append)
    findings = await survey.run()
    assert reported
    return findings


def keep_alive_of(findings: Findings) -> KeepAliveFindings:
    assert findings.keep_alive is not None
    return findings.keep_alive


def loaded_recommendation(text: str, folder: Path) -> dict[str, Any]:
    """Parse a recommendation after the configuration loader has accepted it."""
    path = folder / "balancer.toml"
    path.write_text(text)
    load(path, {})
    return tomllib.loads(text)


# --- idle limit from trials


def test_idle_steps_double_up_to_the_limit() -> None:
    assert idle_steps(5.0) == [0.5, 1.0, 2.0, 4.0, 5.0]
    assert idle_steps(0.5) == [0.5]
    assert len(idle_steps(75.0)) == 9


def trials(**idles: list[float]) -> list[IdleRun]:
    return [IdleRun(idle, Ending(ending)) for ending, found in idles.items() for idle in found]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (trials(answered=[1, 2, 8]), IdleLimit(8, 8)),
        (trials(answered=[1, 2], closed=[5.0, 5.1]), IdleLimit(8, 2, 5.0, 5.1)),
        (trials(answered=[1, 2, 4], closed=[3.0, 6.0]), IdleLimit(8, 2, 3.0, 6.0)),
        (trials(answered=[1, 2], lost=[4, 8]), IdleLimit(8, 2, 4, 8, is_silent=True)),
        (trials(answered=[1], closed=[5], lost=[4]), IdleLimit(8, 1, 5, 5)),
        (trials(closed=[0.2]), IdleLimit(8, 0, 0.2, 0.2)),
        ([], IdleLimit(8, 0)),
    ],
)
def test_idle_limit_from_trials(given: list[IdleRun], found: IdleLimit) -> None:
    """A close gives its own instant; a silent loss only an interval between two idle steps."""
    assert limit_of(given, 8) == found


def test_idle_limit_safe_and_random() -> None:
    assert (IdleLimit(8, 8).safe, IdleLimit(8, 2, 5.0, 5.1).safe) == (8, 5.0)
    silent = IdleLimit(8, 2, 4, 8, is_silent=True)
    assert (silent.safe, silent.is_random, finer_idle_steps(silent)) == (2, False, [2.5, 3.0, 3.5])
    assert IdleLimit(8, 2, 3.0, 6.0).is_random
    assert not IdleLimit(8, 2, 5.0, 5.1).is_random
    assert finer_idle_steps(IdleLimit(8, 2, 5.0, 5.1)) == []


# --- servers


async def test_findings_of_an_emulated_worker() -> None:
    """Each timing contains the earlier phases; HTTP/2 with prior knowledge is refused."""
    async with Worker(WorkerSettings(service=Fixed(0.001))) as worker:
        findings = await run_survey(f"{worker.url}/healthz")
    assert (findings.status, findings.version, findings.takes_head, findings.tls) == (200, "1.1", True, None)
    keep_alive = keep_alive_of(findings)
    assert (keep_alive.is_kept, keep_alive.requests, keep_alive.is_bounded, keep_alive.idle) == (
        True,
        5,
        False,
        IdleLimit(0.5, 0.5),
    )
    assert findings.http2 is not None
    assert not findings.http2.is_spoken
    phases = findings.phases
    assert phases is not None
    assert phases.again is not None
    assert phases.warm is not None
    for timing in (phases.cold, phases.again, phases.warm):
        assert all(earlier <= later for earlier, later in pairwise(astuple(timing)))
    assert (phases.warm.pretransfer, phases.cold.pretransfer > 0) == (0, True)
    assert (findings.connections, findings.requests) == (4, 5 + 2 + 1 + 2)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("resumes", [True, False])
async def test_findings_of_an_emulated_worker_with_tls_and_http2(
    version: str, resumes: bool, tmp_path: Path
) -> None:
    shelf = Shelf(tmp_path)
    both = shelf.both("127.0.0.1")
    settings = WorkerSettings(
        service=Fixed(0.001), tls=version, http="2", certificate=both, resumption=resumes, max_streams=7
    )
    async with Worker(settings) as worker:
        findings = await run_survey(f"{worker.url}/healthz", ca=shelf.ca)
    assert findings.http2 == Http2Findings(True, 7)
    assert findings.tls is not None
    assert (findings.tls.version, findings.tls.resumes) == (f"TLSv{version}", resumes)
    assert findings.tls.expires is not None
    assert findings.phases is not None
    assert findings.phases.cold.appconnect > findings.phases.cold.connect
    toml = loaded_recommendation(advice(findings, shelf.ca), tmp_path)
    assert toml["endpoints"][0]["tls"] == {"ca": str(shelf.ca)}
    json.dumps(findings.document())


async def test_announced_close_after_three_requests_is_found(stage: Stage, tmp_path: Path) -> None:
    """The third response has `Connection: close`."""

    async def script(wire: Wire) -> None:
        for last in (b"", b"", b"\r\nConnection: close"):
            await wire.request()
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2" + last + b"\r\n\r\nok")

    worker = await stage.worker(script)
    findings = await run_survey(f"http://127.0.0.1:{worker.port}/")
    assert (keep_alive_of(findings).requests, keep_alive_of(findings).is_bounded) == (3, True)
    loaded_recommendation(advice(findings), tmp_path)


async def test_unannounced_close_after_three_requests_is_found(stage: Stage) -> None:
    worker = await stage.worker(playing(*(Wire.request, response()) * 3))
    keep_alive = keep_alive_of(await run_survey(f"http://127.0.0.1:{worker.port}/"))
    assert (keep_alive.requests, keep_alive.is_bounded) == (3, True)


def idling(seconds: float) -> Script:
    """Close a connection that has been idle for `seconds`."""

    async def script(wire: Wire) -> None:
        wire.patience = seconds
        with suppress(TimeoutError):
            await answering(response())(wire)

    return script


async def test_idle_close_after_a_second_is_found(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker(idling(1.0))
    findings = await run_survey(f"http://127.0.0.1:{worker.port}/", Bounds(idle=20.0))
    idle = keep_alive_of(findings).idle
    assert idle is not None
    assert idle.closed is not None
    assert idle.kept < idle.closed
    assert not idle.is_silent
    assert loaded_recommendation(advice(findings), tmp_path)["pool"]["idle_timeout"] <= max(0.1, idle.closed)


async def test_idle_search_ends_with_the_last_connection(stage: Stage) -> None:
    """The idle search stops before its limit."""
    idle = len(idle_steps(3600.0))
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(response())
        if len(worker.connections) < 4:  # connections before the idle ones
            await answering(response())(wire)
        if len(worker.connections) == 3 + idle:
            go.set()
        await go.wait()

    worker = await stage.worker(script)
    found = keep_alive_of(await run_survey(f"http://127.0.0.1:{worker.port}/", Bounds(idle=3600.0))).idle
    assert found is not None
    assert found.closed is not None


async def test_silently_lost_connections_are_found(stage: Stage) -> None:
    """Only the next request reveals it; a second round refines the interval."""
    served = 0

    async def script(wire: Wire) -> None:
        nonlocal served
        served += 1
        number = served
        await wire.request()
        await wire.send(response())
        if number <= 3:
            await answering(response())(wire)
        await wire.closed()  # and sends nothing

    worker = await stage.worker(script)
    found = keep_alive_of(
        await run_survey(f"http://127.0.0.1:{worker.port}/", Bounds(idle=0.5, timeout=0.5))
    ).idle
    assert found is not None
    assert (found.is_silent, found.kept, found.closed) == (True, 0.0, 0.125)
    assert found.closed_longest == 0.5


async def test_server_without_keep_alive_is_found(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker(playing(Wire.request, b"HTTP/1.0 200 OK\r\n\r\nhello"))
    findings = await run_survey(f"http://127.0.0.1:{worker.port}/")
    assert findings.version == "1.0"
    keep_alive = keep_alive_of(findings)
    assert (keep_alive.is_kept, keep_alive.requests, keep_alive.is_bounded, keep_alive.idle) == (
        False,
        1,
        True,
        None,
    )
    assert loaded_recommendation(advice(findings), tmp_path)["endpoints"][0]["keep_alive"] is False


async def test_findings_of_the_first_response(stage: Stage) -> None:
    """Cookies by name only, the Keep-Alive parameters, an interim response skipped, HEAD refused."""
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    first = response(
        b"hi",
        b"Set-Cookie: a=secret; Path=/",
        b"Set-Cookie: b=2",
        b"Keep-Alive: timeout=5, max=100, x=y",
        b"Server: s",
    )
    refusal = b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 2\r\n\r\n"
    script = answering(lambda asked: refusal if asked.line.startswith(b"HEAD") else early + first)
    worker = await stage.worker(script)
    findings = await run_survey(f"http://127.0.0.1:{worker.port}/a?b=c")
    assert findings.cookies == ("a", "b")
    assert "secret" not in json.dumps(findings.document())
    assert keep_alive_of(findings).hint == {"timeout": 5, "max": 100}
    assert (findings.server, findings.takes_head) == ("s", False)
    asked = worker.requests[0]
    assert (asked.line, asked.value(b"Host")) == (b"GET /a?b=c HTTP/1.1", b"127.0.0.1:%d" % worker.port)


async def test_server_with_http2_only_is_found(stage: Stage, tmp_path: Path) -> None:
    """With prior knowledge only."""
    shelf = Shelf(tmp_path)
    context = shelf.worker("127.0.0.1")
    context.set_alpn_protocols(["h2"])
    both = shelf.both("127.0.0.1")
    async with Worker(WorkerSettings(service=Fixed(0.001), tls="1.3", http="2", certificate=both)) as behind:

        async def script(wire: Wire) -> None:
            assert wire._writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            inner = shelf.client()
            inner.set_alpn_protocols(["h2"])
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int(behind.url.rpartition(":")[2]), ssl=inner
            )
            there = Wire(reader, writer)

            async def carry(source: Wire, to: Wire) -> None:
                with suppress(ConnectionError, ssl.SSLError):
                    while data := await source.some():
                        await to.send(data)

            back = asyncio.ensure_future(carry(there, wire))
            await carry(wire, there)
            back.cancel()
            await there.close()

        worker = await stage.worker(refusing_http1(script), tls=context)
        findings = await run_survey(f"https://127.0.0.1:{worker.port}/healthz", ca=shelf.ca)
    assert findings.version is None
    assert findings.http2 is not None
    assert findings.http2.is_spoken
    assert loaded_recommendation(advice(findings, shelf.ca), tmp_path)["endpoints"][0]["transport"] == "http2"


def refusing_http1(script: Script) -> Script:
    async def chosen(wire: Wire) -> None:
        if wire._writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            await script(wire)

    return chosen


# --- malformed and unreachable servers


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (playing(Wire.some, b"SSH-2.0-OpenSSH_9.6\r\n"), "malformed_response"),
        (playing(Wire.some), "connection_broken"),
        (
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n"),
            "malformed_response",
        ),
        (answering(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), "malformed_response"),
        (
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (9 << 20)),
            "body_too_long",
        ),
    ],
)
async def test_malformed_response_is_an_error(stage: Stage, script: Script, reason: str) -> None:
    worker = await stage.worker(script)
    with pytest.raises(UpstreamError) as caught:
        await run_survey(f"http://127.0.0.1:{worker.port}/")
    assert caught.value.reason == reason


async def test_missing_response_is_a_timeout(stage: Stage) -> None:
    worker = await stage.worker(playing(Wire.closed))
    with pytest.raises(UpstreamError) as caught:
        await run_survey(f"http://127.0.0.1:{worker.port}/", Bounds(timeout=0.2))
    assert caught.value.reason == "response_timeout"


# --- the command


async def run_probe(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Exit code of `balancer probe …`, which runs an event loop of its own."""
    monkeypatch.setattr("sys.argv", ["balancer", "probe", *words])

    def run() -> int:
        try:
            main()
        except SystemExit as end:
            return int(str(end.code))
        return 0

    return await asyncio.to_thread(run)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("ftp://a",), "URL: must be http://"),
        (("http://a:99999",), "URL: must be http://"),
        (("http://user@a/",), "URL: must be http://"),
        (("http://a/b c",), "URL: must be written in ASCII"),
        (("http://ä/",), "URL: must be written in ASCII"),
        (("http://a/", "--idle-limit", "0"), "--idle-limit"),
        (("http://a/", "--requests", "1"), "--requests"),
        (("http://a/", "--method", "POST"), "--method"),
        (("https://a/", "--ca", "/nonexistent"), "--ca: cannot read /nonexistent"),
        ((), "URL"),
    ],
)
async def test_bad_arguments_exit_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    assert await run_probe(monkeypatch, *words) == 2
    stdout, stderr = capsys.readouterr()
    assert (stdout, stderr.count("\n")) == ("", 1)
    assert stderr.startswith("balancer: ")
    assert named in stderr


async def probe_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, *words: str
) -> tuple[str, str]:
    """The error kind of the JSON output, and the line on stderr."""
    assert await run_probe(monkeypatch, url, "--json", *words) == 1
    stdout, stderr = capsys.readouterr()
    document = json.loads(stdout)
    assert stderr.count("\n") == 1
    return document["error"]["kind"], stderr


@pytest.mark.parametrize(
    ("names", "is_expired", "kind"),
    [(("127.0.0.1",), True, "certificate_expired"), (("other.example.org",), False, "certificate_name")],
)
async def test_invalid_certificate_is_an_error(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    names: tuple[str, ...],
    is_expired: bool,
    kind: str,
) -> None:
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(), tls=shelf.worker(*names, is_expired=is_expired))
    url = f"https://127.0.0.1:{worker.port}"
    found, line = await probe_error(monkeypatch, capsys, url, "--ca", str(shelf.ca))
    assert found == kind
    assert line.startswith(f"balancer: {url}: its certificate ")
    assert worker.received == b""
    assert (await probe_error(monkeypatch, capsys, url))[0] == "certificate_authority"


async def test_unreachable_server_is_an_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused, unanswered, unresolved name, no TLS."""
    refusing = f"http://127.0.0.1:{stage.dead_port()}/"
    kind, line = await probe_error(monkeypatch, capsys, refusing)
    assert kind == "refused"
    assert line.startswith(f"balancer: {refusing.rstrip('/')}")
    deaf = f"http://127.0.0.1:{stage.deaf_port()}/"
    assert (await probe_error(monkeypatch, capsys, deaf, "--timeout", "0.2"))[0] == "timeout"
    assert (await probe_error(monkeypatch, capsys, "http://missing.invalid/"))[0] == "name"
    worker = await stage.worker(playing(Wire.some, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert (await probe_error(monkeypatch, capsys, f"https://127.0.0.1:{worker.port}/"))[0] == "tls"


async def test_json_and_text_output_agree(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Both outputs contain the same recommendation, which `balancer check` accepts; a given Host is in it."""
    worker = await stage.worker(answering(response(b"ok", b"Server: [bold]x\x9b2J")))
    url, app = f"http://127.0.0.1:{worker.port}", ("--host", "app.example.org:81")
    assert await run_probe(monkeypatch, url, "--idle-limit", "0.5", "--requests", "2", "--json", *app) == 0
    stdout, stderr = capsys.readouterr()
    document = json.loads(stdout)
    assert {request.value(b"Host") for request in worker.requests if request.fields} == {
        b"app.example.org:81"
    }
    assert 'host = "app.example.org:81"' in document["recommended"]
    assert (document["keep_alive"]["is_kept"], document["http"]["1"], stderr) == (True, "1.1", "")
    loaded_recommendation(document["recommended"], tmp_path)
    assert await run_probe(monkeypatch, url, "--idle-limit", "0.5", "--requests", "2") == 0
    shown = capsys.readouterr().out
    assert "[[endpoints]]\nid = " in shown
    assert "([bold]x?2J)" in shown
    assert all(word in shown for word in ("keep-alive", "namelookup", "idle limit", "cookies"))


# --- small parts


@pytest.mark.parametrize(
    ("url", "origin", "path", "name"),
    [
        ("https://a.example.org", "https://a.example.org", "/", "a.example.org"),
        ("http://a:81/b?c=d", "http://a:81", "/b?c=d", "a-81"),
        ("http://[::1]:81/", "http://[::1]:81", "/", "1-81"),
        ("http+unix:///run/a.sock:/b?c", "http+unix:///run/a.sock", "/b?c", "run-a.sock"),
    ],
)
def test_target_of_url(url: str, origin: str, path: str, name: str) -> None:
    target = target_of(url)
    assert (target.origin, target.path, target.name) == (origin, path, name)


def test_target_with_white_space_is_refused() -> None:
    """White space and control characters are refused."""
    hostile = ("http://a/b\x7f", "http://a/b\r\nX: y", "http://a/b c", "http://a b/", "http+unix:///a:/b c")
    for url in (*hostile, "http+unix://a", "http+unix:///a:b"):
        with pytest.raises(BadTarget):
            target_of(url)


async def test_unix_socket(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.start(ScriptedWorker(answering(response())), path=tmp_path / "a.sock")
    findings = await run_survey(f"http+unix://{tmp_path / 'a.sock'}:/up")
    assert (findings.status, keep_alive_of(findings).is_kept) == (200, True)
    assert (worker.requests[0].line, worker.requests[0].value(b"Host")) == (b"GET /up HTTP/1.1", b"localhost")
    assert loaded_recommendation(advice(findings), tmp_path)["endpoints"][0]["address"].endswith("a.sock")


def test_final_head_after_interim_responses() -> None:
    received = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 204 No Content\r\nA: b\r\n\r\n"
    assert head_in(received) == ("1.0", [(b"A", b"b")])


def test_recommendation_for_a_distant_server(tmp_path: Path) -> None:
    cold = Timing(0.1, 0.4, 0.7, 0.7, 1.0, 1.0)
    warm = Timing(0, 0, 0, 0, 0.3, 0.3)
    findings = Findings(
        target_of("https://api.example.org/ping"),
        status=200,
        version="1.1",
        http2=Http2Findings(True),
        keep_alive=KeepAliveFindings(True, {}, 10, False, IdleLimit(75, 4, 5.04, 5.1)),
        phases=ProbePhases(cold, None, warm),
        takes_head=True,
    )
    toml = loaded_recommendation(advice(findings), tmp_path)
    assert toml["endpoints"] == [
        {"id": "api.example.org", "address": "https://api.example.org", "transport": "http2"}
    ]
    assert toml["pool"] == {
        "idle_timeout": 4.5,
        "preconnect": 2,
        "heartbeat": "/ping",
        "heartbeat_method": "HEAD",
    }
    assert toml["timeouts"] == {"connect": 3.0}
