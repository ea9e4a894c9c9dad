"""`kind = "inference"`: the defaults that it has, what `balancer check` says of them, and what a client's FIN means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.loading import Settings
from tests.support.command_line import run_in_process
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
