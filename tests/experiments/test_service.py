"""`experiments load`: a load on servers in this process, on URLs and on the policies of a balancer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import trustme
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from experiments.__main__ import cli
from experiments.commands.load import allowed_connections
from experiments.errors import BadInputError
from experiments.results.directory import load_results
from experiments.run_data import Kind, Run
from experiments.scenario.service import ServiceScenario
from experiments.service.plan import contestants_of
from experiments.service.runner import ServiceGenerator
from experiments.service.target import Message, parse_fields, parse_target, reach
from experiments.switchback.readings import RailBroken
from experiments.switchback.turns import PolicyTurns
from tests.support.command_line import complaint, run_in_process
from tests.support.http2_server import Http2Server
from tests.support.made_up_balancer import MadeUpBalancer
from tests.support.wire import Script, ScriptedWorker, Wire, playing

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Server = Callable[..., str]
second_tier = partial(pytest.param, marks=pytest.mark.second_tier)


def answers(response: bytes, seen: list[bytes] | None = None, body: int = 0) -> Script:
    """A server that answers every request alike, and adds it to `seen`."""

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.until(b"\r\n\r\n") + await wire.exactly(body)
            if seen is not None:
                seen.append(request)
            await wire.send(response)

    return script


hangs = Wire.closed
closes = playing(Wire.head)
answers_once = playing(Wire.head, OK, Wire.head)
"""Answers one request without announcing the end, and closes on the second."""


@pytest.fixture
def server() -> Iterator[Server]:
    """`server(script)` runs a server on loopback in another thread and returns its URL; on a socket, its path."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    workers: list[ScriptedWorker] = []

    def start(script: Script, tls: ssl.SSLContext | None = None, socket: Path | None = None) -> str:
        worker = ScriptedWorker(script, tls)
        asyncio.run_coroutine_threadsafe(worker.start(path=socket), loop).result(5)
        workers.append(worker)
        return str(socket or worker.url)

    async def stop() -> None:
        # Accept first what clients that have ended have left: `close` breaks an accept under way.
        for _ in range(3):
            await asyncio.sleep(0)
        for worker in workers:
            await worker.stop()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:  # an accept may wait for a TLS handshake
                task.cancel()
            await asyncio.wait(others, timeout=0.01)

    yield start
    asyncio.run_coroutine_threadsafe(stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def experiments(*arguments: str) -> CompletedProcess[str]:
    return run_in_process(cli, "experiments", *arguments)


def load(out: Path, *arguments: str) -> CompletedProcess[str]:
    """`experiments load` for half a second at 40 requests per second."""
    short = ("--duration", "0.5s", "--warmup", "0", "--rate", "40", "--timeout", "1s")
    return experiments("load", *arguments, *short, "--out", str(out))


def runs_in(out: Path) -> tuple[Run, ...]:
    return load_results(out).runs


# --- what is measured


def test_request_is_sent_as_given_and_no_secret_is_written(server: Server, tmp_path: Path) -> None:
    seen: list[bytes] = []
    url = server(answers(OK, seen, body=11))
    (tmp_path / "fields").write_text("X-Key: sesame-two\n")
    out = tmp_path / "new" / "and" / "deep"
    given = ("--header", "Authorization: Bearer sesame", "--header", f"@{tmp_path / 'fields'}")
    done = load(out, f"{url}/a?b=c", *given, "--data=hello=world")
    assert done.returncode == 0, done.stderr
    head = seen[0].decode()
    assert head.startswith("POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    for line in ("Authorization: Bearer sesame", "X-Key: sesame-two", "Content-Length: 11"):
        assert f"{line}\r\n" in head
    assert head.endswith("\r\n\r\nhello=world")
    samples = runs_in(out)[0].samples
    assert len(seen) == len(samples) == samples.ok.sum() == 20
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"sesame" not in written
    assert b"hello" not in written
    assert "Authorization: …" in load_results(out).campaign.command


@pytest.mark.parametrize(
    ("serve", "kind", "words"),
    [
        (
            answers(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
            Kind.OK,
            "302 × 20; redirects",
        ),
        (answers(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"), Kind.ERROR_STATUS, "503 × 20"),
        second_tier(
            answers(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), Kind.OK, "200 × 20"
        ),
        second_tier(answers(b"hello\r\n\r\n"), Kind.RESET, "none; without one: reset × 20"),
        second_tier(hangs, Kind.TIMEOUT, "none; without one: timeout × 20"),
        (closes, Kind.RESET, "none; without one: reset × 20"),
    ],
)
def test_answers_and_failures_count_as_what_they_are(
    server: Server, tmp_path: Path, serve: Script, kind: Kind, words: str
) -> None:
    done = load(tmp_path / "out", server(serve), "--threshold", "errors < 1 %")
    assert done.returncode == (kind is not Kind.OK)
    assert f": {words}" in done.stdout
    run = runs_in(tmp_path / "out")[0]
    assert (run.samples.kind == kind).all()
    assert len(run.samples) == 20


@pytest.mark.usefixtures("unrendered")
def test_result_set_is_read_by_report_show_and_compare(server: Server, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        assert load(out, f"it={server(answers(OK))}/").returncode == 0
    for arguments in (("report", str(first)), ("show", str(first))):
        done = experiments(*arguments)
        assert done.returncode == 0, done.stderr
        assert "it" in done.stdout
    compared = experiments("compare", str(first), str(second))
    assert compared.returncode == 0, compared.stderr
    assert "differs: it.url" in compared.stdout
    text = (first / "report.md").read_text()
    assert "a service that ran already. GET, over at most" in text
    assert "worker" not in text.partition("Method")[2]
    assert not list((first / "figures").glob("*worker*"))


@pytest.mark.second_tier
def test_several_urls_run_in_blocks_with_a_control(server: Server, tmp_path: Path) -> None:
    one, other = server(answers(OK)), server(answers(OK))
    done = load(tmp_path / "out", f"one={one}", other, other, "--blocks", "2")
    assert done.returncode == 0, done.stderr
    results = load_results(tmp_path / "out")
    label = other.removeprefix("http://")
    assert [entry.label for entry in results.entries()] == ["one", label, f"{label} again"]
    assert results.scenario.control_pair == (label, f"{label} again")
    assert isinstance(results.scenario, ServiceScenario)
    assert {(run.facts.block, run.facts.order) for run in results.runs} == {
        (b, o) for b in (0, 1) for o in (0, 1, 2)
    }


@pytest.mark.usefixtures("unrendered")
def test_certificate_is_verified(server: Server, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    url = server(answers(OK), context)
    refused = load(tmp_path / "a", url)
    assert refused.returncode == 3
    assert "certificate refused" in refused.stderr
    assert "--cacert" in refused.stderr
    assert not (tmp_path / "a").exists()
    for name, option in (("b", ("--cacert", str(tmp_path / "ca.pem"))), ("c", ("--insecure",))):
        assert load(tmp_path / name, url, *option).returncode == 0
        assert runs_in(tmp_path / name)[0].samples.ok.all()


@pytest.mark.usefixtures("unrendered")
def test_weighted_requests_and_stages_come_from_a_file(server: Server, tmp_path: Path) -> None:
    """The same requests for both URLs of a block; bodies and values of fields are not written."""
    seen: dict[str, list[bytes]] = {"one": [], "other": []}
    urls = [f"{name}={server(answers(OK, heads))}/own" for name, heads in seen.items()]
    (tmp_path / "order").write_bytes(b"")
    file = tmp_path / "shop.toml"
    file.write_text("""
        [[requests]]
        weight = 3
        path = "/search?q=a"
        [[requests]]
        method = "PUT"
        fields = { X-Key = "sesame" }
        body_file = "order"
        [[stages]]
        rate = 40
        duration = "500ms"
        [[stages]]
        rate = 40
        to = 120
        duration = 0.5
    """)
    given = ("--traffic", str(file), "--warmup", "0", "--blocks", "1", "--header", "X-All: yes")
    done = experiments("load", *urls, *given, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "75.0% GET /search?q=a with X-All; 25.0% PUT with X-All, X-Key, over at most" in done.stdout
    first, second = ([head.split(b"\r\n")[0] for head in heads] for heads in seen.values())
    assert first == second
    assert len(first) == 60
    assert first.count(b"GET /search?q=a HTTP/1.1") + first.count(b"PUT /own HTTP/1.1") == 60
    assert 5 <= first.count(b"PUT /own HTTP/1.1") <= 27
    assert all((b"\r\nX-Key: sesame\r\n" in head) is head.startswith(b"PUT") for head in seen["one"])
    assert b"sesame" not in (tmp_path / "out" / "campaign.json").read_bytes()
    assert load_results(tmp_path / "out").scenario.load.in_words == (
        "40/s for 0.5 s, then 40 to 120/s for 0.5 s, Poisson"
    )


@pytest.mark.usefixtures("unrendered")
def test_http2_in_clear_text_and_by_alpn(server: Server, tmp_path: Path) -> None:
    authority = trustme.CA()
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2)]
    for context, protocol in zip(contexts, ("h2", "http/1.1"), strict=True):
        authority.issue_cert("127.0.0.1").configure_cert(context)
        context.set_alpn_protocols([protocol])
    for name, tls in (("clear", None), ("tls", contexts[0])):
        http2 = Http2Server()
        done = load(tmp_path / name, server(http2.serve, tls), "--http2", "--insecure", "--data", "hello")
        assert done.returncode == 0, done.stderr
        assert "over HTTP/2" in done.stdout
        assert [request.body for request in http2.requests] == [b"hello"] * 20
        assert runs_in(tmp_path / name)[0].samples.ok.all()
    refused = load(tmp_path / "none", server(answers(OK), contexts[1]), "--http2", "--insecure")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "HTTP/2" in refused.stderr


@pytest.mark.usefixtures("unrendered")
def test_service_on_a_unix_socket(server: Server, tmp_path: Path) -> None:
    seen: list[bytes] = []
    path = server(answers(OK, seen), socket=tmp_path / "app.sock")
    assert load(tmp_path / "out", f"app=http+unix://{path}:/a").returncode == 0
    assert seen[0].startswith(b"GET /a HTTP/1.1\r\nHost: localhost\r\n")
    assert len(seen) == runs_in(tmp_path / "out")[0].samples.ok.sum() == 20


# --- figures for a collector


def collects(bodies: list[bytes], response: bytes = OK) -> Script:
    """A receiver of OTLP over HTTP."""

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            assert request.line == b"POST /v1/metrics HTTP/1.1"
            bodies.append(request.body)
            await wire.send(response)

    return script


@pytest.mark.usefixtures("unrendered")
def test_figures_go_to_a_collector(server: Server, tmp_path: Path) -> None:
    """The last export has all requests of the campaign, by entry and outcome."""
    bodies: list[bytes] = []
    url = server(answers(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"))
    urls = (f"good={server(answers(OK))}", f"bad={url}")
    done = load(tmp_path / "out", *urls, "--blocks", "1", "--otlp", server(collects(bodies)))
    assert done.returncode == 0, done.stderr
    assert "otlp" not in done.stdout
    (of_resource,) = ExportMetricsServiceRequest.FromString(bodies[-1]).resource_metrics
    resource = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
    assert (resource["service.name"], resource["steelyard.scenario"]) == ("steelyard-experiments", "load")
    found = {
        (metric.name.removeprefix("steelyard.experiment."), *(pair.value.string_value for pair in point.attributes)):
        point.as_int or point.as_double
        for scope in of_resource.scope_metrics
        for metric in scope.metrics
        for point in (*metric.sum.data_points, *metric.gauge.data_points)
    }  # fmt: skip
    assert found["requests", "good", "ok"] == 20
    assert found["requests", "bad", "error_status"] == 20
    assert found["requests", "good", "ok"] + found["requests", "bad", "ok"] == 20


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    "receiver", [None, hangs, collects([], b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")]
)
def test_failing_collector_disturbs_no_run(server: Server, tmp_path: Path, receiver: Script | None) -> None:
    where = "http://127.0.0.1:9" if receiver is None else server(receiver)
    done = load(tmp_path / "out", f"it={server(answers(OK))}", "--otlp", where)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(f"otlp: {where}") <= 1  # the last export of another test may end here
    assert runs_in(tmp_path / "out")[0].samples.ok.sum() == 20


# --- connections


async def sent(url: str, count: int, most: int, spacing: float = 0.002) -> ServiceGenerator:
    """`count` requests to `url`, over at most `most` connections."""
    destination = await reach(parse_target(url), None, [Message("GET", (), b"")], 5.0)
    generator = ServiceGenerator(destination, np.linspace(0.0, count * spacing, count), 0.4, most)
    await generator.run(1)
    return generator


def test_connections_are_bounded_and_waiting_requests_time_out(server: Server) -> None:
    """More requests than the stack is deep wait for two connections that hang."""
    opened = 0

    async def script(wire: Wire) -> None:
        nonlocal opened
        opened += 1
        await wire.closed()

    generator = asyncio.run(sent(server(script), 3000, most=2, spacing=0.00002))
    assert set(generator.ledger.kind) == {Kind.TIMEOUT}
    assert 3 <= opened <= 20  # one to learn the address; two, and two again when the first have timed out


def test_request_on_a_closed_idle_connection_is_sent_again(server: Server) -> None:
    generator = asyncio.run(sent(server(answers_once), 10, most=1, spacing=0.02))
    assert set(generator.ledger.kind) == {Kind.OK}


# --- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("ftp://a/",), "URL: must be http://"),
        (("http://user:secret@a/",), "URL: must be http://"),
        (("http://a/", "--rate", "nan"), "not a finite number"),
        (("http://a/", "--rate", "1e6"), "not in the range"),
        (("http://a/", "--duration", "-1s"), "--duration: must be a duration"),
        (
            ("http://a/", "--duration", "200h", "--rate", "9000"),
            "--rate: 6,480,000,000 requests; a run has at most",
        ),
        (("http://a/", "--header", "Secret value"), "--header: must be 'Name: value'"),
        (
            ("http://a/", "--header", "Content-Length: 3"),
            "--header: Content-Length: the load generator sets it",
        ),
        (("http://a/", "--data", "@/nonexistent"), "--data: '/nonexistent' cannot be read"),
        (("https://a/", "--cacert", "/nonexistent"), "--cacert: cannot read /nonexistent"),
        (("http://a/", "--threshold", "p99 < x"), "--threshold: 'p99 < x' is not understood"),
        (("http://a/", "--max-p99", "1s"), "--max-p99: only with --policies"),
        (("http://a/", "http://b/", "--policies", "random,c3"), "--policies: one URL"),
        (("a,b=http://a/",), "no comma"),
        (("x=http://a/", "x=http://b/"), "'x' names two"),
        (("http://127.0.0.1:9/", "--connections", "0"), "'--connections'"),
        (("http://a/", "--stages", "50"), "--stages: must be RATE:TIME or FROM-TO:TIME"),
        (("http://a/", "--stages", "50:1s,0:1s"), "RATE:TIME or FROM-TO:TIME, above 0 at one end, separated"),
        (("http://a/", "--stages", "50:1s", "--rate", "9"), "--rate: the stages have their own"),
        (("http://a/", "--stages", "5-50000:1s"), "--stages: at most 10,000 requests per second, got 50000"),
        (("http://a/", "--otlp", "collector:4318"), "--otlp: must be http://"),
        (("http://a/", "--junit", "a.xml"), "--junit: there is no threshold"),
        (("http://a/", "--junit", "/nonexistent/a.xml"), "--junit: /nonexistent is not a directory"),
        (("http://a/", "--traffic", "/nonexistent"), "/nonexistent: cannot be read"),
        (("https://a/", "--http2", "--header", f"X: {'a' * 17000}"), "--http2: header fields have at most"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    line = complaint(cli, "experiments", "load", *arguments, "--out", str(tmp_path / "out"))
    assert message in line
    assert "Secret value" not in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have [[requests]], [[stages]] or both"),
        ("[[requests]]\nweight = 0", "requests.0.weight: "),
        ("[[requests]]\npath = 'a'", "requests.0.path: must begin with / and be ASCII"),
        ("[[requests]]\npath = '/ü'", "requests.0.path: must begin with / and be ASCII"),
        ("[[requests]]\nverb = 'GET'", "requests.0.verb: "),
        ("[[requests]]\nfields = { Host = 'a', TE = 'Secret value' }", "requests.0.fields: TE: "),
        ("[[requests]]\nbody = 'a'\nbody_file = 'b'", "requests.0: body_file: not beside body"),
        ("[[requests]]\nbody_file = 'nowhere'", "requests.0.body_file: "),
        ("[[stages]]\nrate = 1\nduration = 'long'", "stages.0.duration: 'long' is not a duration"),
        ("[[stages]]\nrate = 1\nduration = 1", "--stages: not beside those of"),
    ],
)
def test_error_in_a_traffic_file_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    given = ("--traffic", str(file), "--stages", "1:1s", "--out", str(tmp_path / "out"))
    line = complaint(cli, "experiments", "load", "http://a/", *given)
    assert message in line
    assert "bad.toml" in line
    assert "Secret value" not in line


def test_refused_connection_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    done = load(tmp_path / "out", "http://127.0.0.1:9/")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "http://127.0.0.1:9: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_labels_of_urls_are_short_and_have_no_comma() -> None:
    url = f"https://example.org/{'a' * 60},b?key=1"
    (only,) = contestants_of([url])
    assert len(only.label) == 40
    assert "," not in only.label
    assert only.url == url
    with pytest.raises(BadInputError, match="at most 20"):
        contestants_of([f"http://a/{number}" for number in range(21)])


def test_fields_of_a_file_end_at_ends_of_lines_only(tmp_path: Path) -> None:
    """A part of a letter in UTF-8 may be a separator in Latin-1."""
    (tmp_path / "fields").write_text("X-A: Åse\r\n\nX-B: b", encoding="utf-8")
    assert parse_fields([f"@{tmp_path / 'fields'}"]) == (("X-A", "Ã\x85se"), ("X-B", "b"))


def test_message_of_a_bad_field_quotes_no_value() -> None:
    with pytest.raises(BadInputError) as caught:
        parse_fields(["Authorization: Bearer\nsesame"])
    assert "sesame" not in str(caught.value)


def test_connections_follow_the_load() -> None:
    assert allowed_connections(None, 1.0, 1.0) == 8
    assert allowed_connections(20, 1.0, 1.0) == 20


# --- policies in turns


POLICIES: list[dict[str, Any]] = [{"name": "fast", "choices": 2}]


def in_turns(balancer: MadeUpBalancer, between: Callable[[PolicyTurns], Awaitable[None]]) -> list[str]:
    """Begin, run `between` while the policy is to be restored at the end; returns what was printed."""
    said: list[str] = []
    turns = PolicyTurns(balancer, notify=said.append, poll=0.01)
    assert turns.begin(POLICIES) == {"name": "old"}
    with turns.restoring():
        asyncio.run(between(turns))  # type: ignore[arg-type]
    return said


async def applied(turns: PolicyTurns) -> None:
    await turns.apply(POLICIES[0])


def test_initial_policy_is_restored_at_the_end() -> None:
    balancer = MadeUpBalancer()
    assert in_turns(balancer, applied) == ["'old' is in force again."]
    assert balancer.put == [*POLICIES, {"name": "old"}]


async def forever() -> Any:
    await asyncio.Event().wait()


def test_broken_rail_ends_the_load(server: Server) -> None:
    balancer = MadeUpBalancer()
    balancer.means["fast"] = 10.0
    url = server(answers(OK))

    async def load_under_policies(turns: PolicyTurns) -> None:
        destination = await reach(parse_target(url), None, [Message("GET", (), b"")], 5.0)
        initial = ServiceGenerator(destination, np.zeros(3), 1.0, 8)
        await balancer.sleep(2.0)
        first = asyncio.ensure_future(turns.observe_initial(partial(initial.run, 1)))
        while not first.done():
            await balancer.sleep(0.1)
        assert turns.rails is not None
        await applied(turns)
        loading = asyncio.ensure_future(turns.guarded(forever))
        while not loading.done():
            await balancer.sleep(1.0)
        await loading

    with pytest.raises(RailBroken, match="fast: p99 is"):
        in_turns(balancer, load_under_policies)
    assert balancer.policy == {"name": "old"}
