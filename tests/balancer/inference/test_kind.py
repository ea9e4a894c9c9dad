"""`kind = "inference"`: its defaults, what `balancer check` says of them, errors, and what a client's FIN means."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.loading import Settings
from balancer.config.schema.log import LogConfig
from balancer.log.access_log import AccessLog
from balancer.log.output import LogOutput
from tests.support.command_line import run_in_process
from tests.support.log_entries import written
from tests.support.wireless import Wireless, sends

WORKER = {"id": "a", "address": "http://a:1"}
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


def settings(**keys: Any) -> Settings:
    return Settings.model_validate({"kind": "inference", "endpoints": [WORKER], **keys})


def test_defaults() -> None:
    found = settings()
    assert (found.timeouts.first_byte, found.timeouts.body_idle, found.timeouts.shutdown) == (1800, 300, 300)
    assert (found.buffering.request, found.retry.body) == (1 << 20, 1 << 20)
    assert (found.retries, found.retry.busy, found.retry.share) == (4, (429, 503), 1.0)
    assert (found.key.by, found.key.name) == ("header", "X-Session-ID")
    assert found.half_close is False


def test_given_keys_stay() -> None:
    found = settings(
        half_close=True,
        retries=0,
        policy="round-robin",
        timeouts={"first_byte": 5, "shutdown": 10},
        retry={"busy": []},
        buffering={"request": 0},
        key={"by": "client"},
    )
    assert (found.half_close, found.retries, found.policy.name) == (True, 0, "round-robin")
    assert (found.timeouts.first_byte, found.timeouts.shutdown, found.timeouts.body_idle) == (5, 10, 300)
    assert (found.retry.busy, found.buffering.request, found.retry.body) == ((), 0, 0)
    assert (found.key.by, found.key.name) == ("client", None)


@pytest.mark.parametrize(
    ("keys", "session"),
    [
        ({"sticky": {"header": "X-User"}}, None),
        ({"buffering": {"total": 2000}}, "header"),
    ],
)
def test_defaults_contradict_no_given_key(keys: dict[str, Any], session: str | None) -> None:
    found = settings(**keys)
    assert found.key.by == session
    assert found.buffering.request <= found.buffering.total


def test_kind_of_one_cluster() -> None:
    """A named cluster has its own kind; the time that streams get at the shutdown is the process's."""
    found = settings(
        kind="http",
        clusters={"llm": {"kind": "inference", "endpoints": [WORKER]}},
        routes=[{"cluster": "llm"}],
    )
    assert (found.timeouts.first_byte, found.timeouts.shutdown, found.half_close) == (25, 300, True)
    llm = found.of_cluster("llm")
    assert (llm.timeouts.first_byte, llm.half_close, llm.retry.busy) == (1800, False, (429, 503))
    assert Settings.model_validate({"endpoints": [WORKER]}).timeouts.first_byte == 25


def test_check_names_what_the_kind_sets(tmp_path: Path) -> None:
    file = tmp_path / "balancer.toml"
    file.write_text(
        'kind = "inference"\n[[endpoints]]\nid = "a"\naddress = "http://a:1"\n[timeouts]\nbody_idle = 7\n'
    )
    line = run_in_process(main, "balancer", "check", str(file)).stdout.splitlines()[1]
    assert "kind inference sets half_close = false, retries = 4, " in line
    assert "timeouts.first_byte = 1800.0" in line
    assert 'key.name = "X-Session-ID"' in line
    assert "body_idle" not in line


LIMIT = (("name", "none"), ("requests", 1), ("burst", 1), ("period", 60), ("everywhere", True))


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({}, "connect_failed"),
        ({"rate_limits": (LIMIT,)}, "rate_limited"),
        ({"errors": (("5xx", (("body", "sorry"),)),)}, None),
    ],
)
def test_own_errors_have_the_form_of_openai(keys: dict[str, Any], code: str | None, tmp_path: Path) -> None:
    """Unless a body is configured. The access log knows how long they are."""
    path = tmp_path / "log"
    with Wireless(kind="inference", policy="round-robin", **keys) as stage:
        log = AccessLog(LogOutput(str(path)), LogConfig(access="json"), offset=0.0, rng=Random(1))
        stage.cluster.process.access_log = log
        stage.control_plane.apply_access_log()
        stage.dialling = "refuse"
        client = stage.client()
        for _ in range(2):  # the second is beyond the limit
            before = len(client.received)
            sends(stage, client, REQUEST)
        body = client.received[before:].partition(b"\r\n\r\n")[2]
        log.start()
        log.stop()
        line = written(path)[-1]
        assert line["bytes"] == len(body)
        error = {"message": line["detail"], "type": "balancer_error", "param": None, "code": code}
        whole = {"error": error, "request_id": line["request_id"]}
        assert body == b"sorry" if code is None else json.loads(body) == whole


def test_check_warns_of_load_probes_that_are_not_sent(tmp_path: Path) -> None:
    """`pending-tokens` asks for no load."""
    file = tmp_path / "balancer.toml"
    for policy, warnings in (("pending-tokens", 1), ("llm-d", 0)):
        file.write_text(
            f'kind = "inference"\npolicy = "{policy}"\n[[endpoints]]\nid = "a"\naddress = "http://a:1"\n'
            '[load_probes]\npath = "/metrics"\nformat = "metrics"\n'
        )
        lines = run_in_process(main, "balancer", "check", str(file)).stdout.splitlines()
        assert [line.startswith("warning: load_probes: is not used") for line in lines].count(
            True
        ) == warnings


# --- a client's FIN


def asked(stage: Wireless) -> tuple[Any, Any]:
    client = stage.client()
    sends(stage, client, REQUEST)
    (worker,) = stage.workers
    return client, worker


def test_fin_frees_the_worker_at_once() -> None:
    """In the iteration of the loop that reads it, without a sweep: the endpoint is not blamed."""
    with Wireless(kind="inference", policy="round-robin") as stage:
        client, worker = asked(stage)
        client.end()
        stage.turn()
        assert not worker.is_open
        assert stage.cluster.counts.abandoned == 1
        assert stage.cluster.router.states[0].failures == 0


def test_fin_within_a_stream_frees_the_worker_at_once() -> None:
    """Also while the client has not taken what was written."""
    with Wireless(kind="inference", policy="round-robin") as stage:
        client, worker = asked(stage)
        client.stall()
        sends(stage, worker, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        client.end()
        stage.turn()
        assert not worker.is_open


@pytest.mark.parametrize("keys", [{"kind": "inference", "half_close": True}, {}])
def test_half_close(keys: dict[str, Any]) -> None:
    with Wireless(policy="round-robin", **keys) as stage:
        client, worker = asked(stage)
        client.end()
        stage.turn()
        assert worker.is_open
        sends(stage, worker, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert client.received.endswith(b"ok")
