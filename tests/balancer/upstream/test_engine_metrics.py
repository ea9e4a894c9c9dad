"""Load of inference servers from their /metrics, through load probes to the policy."""

from __future__ import annotations

import json
import re

import pytest

from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.status import endpoint_status
from balancer.upstream.engine_metrics import load_of
from policies.facts import ReportedLoad
from policies.inference.llm_d import LlmD
from policies.prompts import Prompt
from tests.support.programs import PATIENCE, running
from tests.support.prompts import chat
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, answering, post, response

VLLM = """\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a} b"} 2.0
vllm:num_requests_waiting{engine="1",model_name="a} b"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:num_requests_running{engine="0",model_name="a} b"} 4.0
vllm:num_requests_running{engine="1",model_name="a} b"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="a} b"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="a} b"} 0.25
vllm:cache_config_info{block_size="16",engine="0",mamba_block_size="None",num_gpu_blocks="1000",\
num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="3000"} 1.0
"""
OLD_VLLM = 'vllm:gpu_cache_usage_perc{model_name="m"} 7.5e-1\nvllm:num_requests_waiting{model_name="m"} 3.0'
SGLANG = """\
sglang:num_queue_reqs{dp_rank="0",priority="",tp_rank="0"} 3.0
sglang:num_queue_reqs{dp_rank="0",priority="1",tp_rank="0"} 3.0
sglang:num_queue_reqs{dp_rank="0",priority="",tp_rank="1"} 3.0
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.28
sglang:page_size 1.0
sglang:num_pages 50000.0
"""
OLD_SGLANG = 'sglang:cache_config_info{num_pages="700",page_size="64"} 1.0\n'
TENSORRT = """\
trtllm_num_requests_waiting{engine_type="trtllm"} 1
trtllm_num_requests_running{engine_type="trtllm"} 6
trtllm_kv_cache_utilization{engine_type="trtllm"} 0.62
trtllm_kv_cache_tokens_per_block{engine_type="trtllm"} 32
trtllm_kv_cache_max_blocks{engine_type="trtllm"} 100
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, ReportedLoad(12, waiting=3, kv_usage=0.375, kv_tokens=64_000)),
        (OLD_VLLM, ReportedLoad(waiting=3, kv_usage=0.75)),
        (SGLANG, ReportedLoad(5, waiting=3, kv_usage=0.28, kv_tokens=50_000)),
        (OLD_SGLANG, ReportedLoad(kv_tokens=44_800)),
        (TENSORRT, ReportedLoad(7, waiting=1, kv_usage=0.62, kv_tokens=3200)),
    ],
    ids=["vllm", "old-vllm", "sglang", "old-sglang", "tensorrt-llm"],
)
def test_engines(text: str, expected: ReportedLoad) -> None:
    assert load_of(text.encode()) == expected


@pytest.mark.parametrize(
    ("found", "replaced", "missing"),
    [
        ('running{engine="1",model_name="a} b"} 5.0', "running NaN", ["in_flight"]),
        ('waiting{engine="1",model_name="a} b"} 1.0', "waiting -1", ["in_flight", "waiting"]),
        ('waiting{engine="1",model_name="a} b"} 1.0', "waiting many", ["in_flight", "waiting"]),
        ("} 0.25", "} 37.5", ["kv_usage"]),  # per cent is not full
        ("} 0.25", "} +Inf", ["kv_usage"]),
        ('num_gpu_blocks="3000"', 'num_gpu_blocks="None"', ["kv_tokens"]),
        ('block_size="16",engine="1"', 'block_size="32",engine="1"', ["kv_tokens"]),
    ],
)
def test_a_quantity_with_a_malformed_series_is_unknown(found: str, replaced: str, missing: list[str]) -> None:
    assert VLLM.count(found) == 1
    whole, load = load_of(VLLM.encode()), load_of(VLLM.replace(found, replaced).encode())
    assert whole is not None
    assert load == whole._replace(**dict.fromkeys(missing))


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\x00", b"# vllm:num_requests_waiting 1", b"other 1\n"])
def test_no_load(text: bytes) -> None:
    assert load_of(text) is None


# --- through the balancer


async def asked(stage: Stage, *workers: ScriptedWorker) -> None:
    """Serve these workers by llm-d, and send a request after which all load probes have ended."""
    probes = {"path": "/metrics", "format": "metrics"}
    await stage.serve(*workers, kind="inference", policy="llm-d", load_probes=probes)
    await asked_again(stage)


async def asked_again(stage: Stage) -> None:
    assert (await stage.ask(post(chat("hello")))).status == 200
    await stage.eventually(lambda: not stage.control_plane.load_probes.under_way)


async def worker_of(stage: Stage, metrics: bytes) -> ScriptedWorker:
    return await stage.worker(
        answering(lambda request: metrics if b"/metrics" in request.line else response())
    )


def reported(stage: Stage, name: str = "w0") -> ReportedLoad:
    policy = stage.cluster.router.policy
    assert isinstance(policy, LlmD)
    return policy.accounts.look(Prompt(1.0), [stage.state(name)], stage.clock.at)[0].reported


async def test_a_report_reaches_the_policy_and_ages_in_the_status(stage: Stage) -> None:
    await asked(stage, await worker_of(stage, response(VLLM.encode())))
    assert reported(stage) == load_of(VLLM.encode())
    stage.jump(1.5)
    assert endpoint_status(stage.control_plane, stage.state())["load_report_age"] == 1.5
    text, _ = metrics_text(stage.control_plane)
    assert b'steelyard_endpoint_load_report_age_seconds{endpoint="w0",region="r"} 1.5' in text


@pytest.mark.parametrize(
    ("metrics", "result"),
    [
        (response(b"x" * (1 << 20) + VLLM.encode()), "failed"),
        (response(b"x" * 900_000 + b"\n" + VLLM.encode()), "answered"),
        (response(VLLM.encode(), status=b"500 Oops"), "silent"),
        (response(b"{}", b"X-Worker-In-Flight: 3"), "silent"),
    ],
)
async def test_responses(stage: Stage, metrics: bytes, result: str) -> None:
    await asked(stage, await worker_of(stage, metrics))
    assert getattr(stage.control_plane.load_probes.counts, result) == 1
    is_known = result == "answered"
    assert (endpoint_status(stage.control_plane, stage.state())["load_report_age"] is not None) == is_known


async def test_at_most_one_probe_per_endpoint_and_refresh(stage: Stage) -> None:
    """Of three endpoints all are probed first; after a third of 50 ms one is due, and after a pause each is once."""
    await asked(stage, *[await worker_of(stage, response(VLLM.encode())) for _ in range(3)])
    sent = [stage.control_plane.load_probes.counts.sent]
    for pause in (0.0, 0.017, 0.017, 0.017, 10.0):
        stage.jump(pause)
        await asked_again(stage)
        sent.append(stage.control_plane.load_probes.counts.sent)
    assert sent == [3, 3, 4, 5, 6, 9]


async def test_an_emulated_engine_as_a_program(stage: Stage) -> None:
    async with running("workers") as run:
        program = await run("inference", "--name", "e0", "--port", "0")
        assert program.stdout is not None
        ready = re.search(r":(\d+) ", (await program.stdout.readline()).decode())
        assert ready is not None
        probes = {"path": "/metrics", "format": "metrics", "timeout": PATIENCE}
        await stage.serve(int(ready[1]), kind="inference", policy="llm-d", load_probes=probes)
        body = json.dumps({**json.loads(chat("hello")), "model": "emulated", "max_tokens": 1}).encode()
        answer = await stage.ask(post(body).replace(b"POST /", b"POST /v1/chat/completions", 1))
        assert answer.status == 200
        await stage.eventually(lambda: stage.control_plane.load_probes.counts.answered)
        load = reported(stage)
        assert load.kv_tokens is not None
        assert (load.waiting, load.kv_tokens > 0) == (0, True)
