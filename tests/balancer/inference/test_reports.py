"""Prompts and tokens in metrics, status, the terminal and the access log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from balancer.config.schema.log import TOKEN_FIELDS, LogConfig
from balancer.control.admin.merge import merged
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.policy_report import raw
from balancer.control.admin.status import proxy_status
from balancer.control.admin.status_command import lines_of
from balancer.log.formats import Context
from balancer.log.lines import format_of
from tests.support.log_entries import RecordingLog
from tests.support.prompts import USAGE, answer_with_usage, asked, asks, chat, inference
from tests.support.wireless import Wireless, sends

OTHER = (
    ("kind", "http"),
    ("policy", "random"),
    ("endpoints", ((("id", "n"), ("address", "http://192.0.2.77:80")),)),
)


@pytest.fixture
def stage() -> Iterator[Wireless]:
    """After one answered prompt, two seconds after its request, and one body without a prompt; all logged."""
    with inference(clusters=(("next", OTHER),)) as stage:
        stage.cluster.journal = RecordingLog()
        client, worker = asked(stage, chat("hello"))
        stage.advance(2.0)
        sends(stage, worker, answer_with_usage())
        sends(stage, client, asks(b"[]"))
        sends(stage, worker, answer_with_usage())
        yield stage


def status_of(stage: Wireless, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(proxy_status(stage.control_plane, **options)))
    return found


def test_metrics(stage: Wireless) -> None:
    """The other cluster, whose policy reads no prompts, has none."""
    text, _ = metrics_text(stage.control_plane)
    found = {
        (sample.name, *(value for name, value in sample.labels.items() if name != "cluster")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found["steelyard_prompts_total",] == 1
    assert found["steelyard_prompts_unread_total", "wrong_type"] == 1
    tokens = [found["steelyard_tokens_total", kind] for kind in ("prompt", "cached", "output")]
    assert tokens == [50, 32, 3]
    assert (found["steelyard_ttft_seconds_count",], found["steelyard_ttft_seconds_sum",]) == (1, 2)
    assert found["steelyard_tpot_seconds_count",] == 0
    assert b'steelyard_prompts_total{cluster="next"}' not in text


def test_status(stage: Wireless) -> None:
    """That of several processes is the sum."""
    found = status_of(stage)
    assert found["clusters"][0]["inference"] is None
    for number, one in ((1, found), (2, merged([status_of(stage, describe=raw)] * 2))):
        ours = one["inference"]
        counts = [ours[name] for name in ("prompts", "prompt_tokens", "cached_tokens", "output_tokens")]
        assert counts == [number, 50 * number, 32 * number, 3 * number]
        assert (ours["ttft"]["count"], ours["unread"]["wrong_type"]) == (number, number)


def test_terminal(stage: Wireless) -> None:
    (line,) = [line for line in lines_of(status_of(stage)) if line.startswith("prompts")]
    assert line.startswith(
        "prompts 1, unread 1, tokens 50 (64% cached), output 3, TTFT p50 1.92 s p99 1.92 s, "
    )
    assert line.endswith("TPOT p50 – p99 –")


def test_rest_of_an_endpoint_is_in_its_status() -> None:
    with inference(2) as stage:
        _, worker = asked(stage, chat("hello"))
        sends(stage, worker, b"HTTP/1.1 429 Busy\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n")
        first, second = status_of(stage)["endpoints"]
        assert (first["rests_for"], second["rests_for"]) == (9.0, 0.0)
        assert first["outcomes"]["busy"] == 1


def logged(stage: Wireless) -> list[dict[str, Any]]:
    """The fields of tokens in the access log."""
    line, _ = format_of(LogConfig(fields=TOKEN_FIELDS))
    log = stage.cluster.journal
    assert isinstance(log, RecordingLog)
    return [json.loads(line(entry, Context(0.0, "1"))) for entry in log.entries]


def test_access_log(stage: Wireless) -> None:
    """A request without a prompt has none of the fields."""
    whole = {"ttft": 2.0, "tpot": None, "prompt_tokens": 50, "cached_tokens": 32, "output_tokens": 3}
    assert logged(stage) == [whole, dict.fromkeys(TOKEN_FIELDS)]


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
def test_access_log_without_usage(status: bytes) -> None:
    """Of a refused request, and of an answer whose `usage` is more than 4 KiB before its end."""
    with inference() as stage:
        stage.cluster.journal = RecordingLog()
        _, worker = asked(stage, chat("hello"))
        body = json.dumps({"usage": USAGE, "choices": "x" * 4096}).encode()
        sends(stage, worker, b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        (found,) = logged(stage)
        assert (found["prompt_tokens"], found["output_tokens"]) == (None, None)
