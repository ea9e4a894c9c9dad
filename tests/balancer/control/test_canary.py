"""Canary and shadow policies in a running server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from balancer.config.schema.policy_spec import PolicySpec
from tests.support.admin_requests import local, metrics, put_policy
from tests.support.stage import Stage
from tests.support.wire import get, response

POLICY = {
    "name": "round-robin",
    "canary": {"name": "least-in-flight", "share": 0.5, "choices": 3},
    "shadow": ["random", {"name": "region-aware", "margin": 0.5}],
}


async def policy_of(stage: Stage) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((await stage.ask(local(b"/-/policy"))).body)
    return report


async def serve_two_workers(stage: Stage, **settings: Any) -> None:
    workers = [await stage.worker(response()) for _ in range(2)]
    await stage.serve(*workers, **settings)


async def test_status_of_canary_and_shadows(stage: Stage) -> None:
    await serve_two_workers(stage, policy=POLICY)
    for _ in range(40):
        await stage.ask(get())
    report = await policy_of(stage)
    arms = report["canary"]["arms"]
    assert [(role, arms[role]["policy"]) for role in arms] == [
        ("live", "round-robin"),
        ("canary", "least-in-flight"),
    ]
    assert arms["live"]["picks"] + arms["canary"]["picks"] == 40
    assert 8 <= arms["canary"]["picks"] <= 32
    assert arms["canary"]["outcomes"]["ok"] == arms["canary"]["latency"]["count"] == arms["canary"]["picks"]
    assert [(shadow["name"], shadow["seen"]) for shadow in report["shadow"]] == [
        ("random", 40),
        ("region-aware", 40),
    ]
    assert sum(report["shadow"][0]["picks"].values()) == 40


async def test_failures_count_for_the_policy_that_picked(stage: Stage) -> None:
    await stage.serve(stage.dead_port(), policy=POLICY, retries=0, outlier_detection={"failures": 0})
    for _ in range(20):
        await stage.ask(get())
    arms = (await policy_of(stage))["canary"]["arms"]
    assert all(arm["outcomes"]["refused"] == arm["picks"] > 0 for arm in arms.values())


async def test_canary_changes_at_run_time(stage: Stage) -> None:
    """By command and by reload; putting a returned `spec` restores all of it."""
    await serve_two_workers(stage)
    put = await stage.ask(put_policy(POLICY))
    assert put.status == 200
    spec = json.loads(put.body)["spec"]
    assert spec["canary"] == POLICY["canary"]
    assert (await policy_of(stage))["canary"]["share"] == 0.5
    await stage.ask(put_policy("random"))
    assert (await policy_of(stage))["canary"] is None
    assert (await stage.ask(put_policy(spec))).status == 200
    assert (await policy_of(stage))["spec"] == spec
    await stage.reload(policy="random")
    assert stage.cluster.canary is None


async def test_check_of_a_policy_changes_nothing(stage: Stage) -> None:
    await serve_two_workers(stage)
    fine = await stage.ask(local(b"/-/policy?check", method=b"PUT", body=b'"random"'))
    assert (fine.status, json.loads(fine.body)["name"]) == (200, "round-robin")
    assert (await stage.ask(local(b"/-/policy?check", method=b"PUT", body=b'"p2x"'))).status == 422


async def test_sticky_requests_are_not_counted(stage: Stage) -> None:
    """A request that follows its session asks no policy and is not counted."""
    await serve_two_workers(stage, policy=POLICY, sticky={"header": "X-User"})
    for _ in range(10):
        await stage.ask(get(b"/", b"X-User: ann"))
    arms = (await policy_of(stage))["canary"]["arms"]
    assert sum(arm["picks"] + arm["latency"]["count"] for arm in arms.values()) == 0


async def test_metrics_by_role(stage: Stage) -> None:
    await serve_two_workers(stage, policy=POLICY)
    for _ in range(20):
        await stage.ask(get())
    text = await metrics(stage)
    rows = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    served = [
        float(rows[f'steelyard_policy_latency_seconds_count{{policy="{name}",role="{role}"}}'])
        for name, role in (("round-robin", "live"), ("least-in-flight", "canary"))
    ]
    assert sum(served) == 20
    picks = [float(n) for row, n in rows.items() if row.startswith("steelyard_shadow_picks_total{endpoint=")]
    assert sum(picks) == 40
    assert rows['steelyard_shadow_faults_total{policy="random"}'] == "0.0"


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"name": "random", "canary": {"name": "p2x"}}, "unknown policy 'p2x'"),
        ({"name": "random", "canary": {"name": "random", "share": 0.9}}, "canary.share"),
        ({"name": "random", "canary": {"name": "random", "margin": 1}}, "policy.canary.margin"),
        ({"name": "random", "shadow": ["random", "random"]}, "shadow"),
        ({"name": "random", "shadow": [{"name": "region-aware", "margin": -1}]}, "policy.shadow.0.margin"),
    ],
)
async def test_invalid_canary_or_shadow(stage: Stage, policy: dict[str, Any], problem: str) -> None:
    await serve_two_workers(stage)
    refused = await stage.ask(put_policy(policy))
    assert refused.status == 422
    assert problem in json.loads(refused.body)["error"]
    assert stage.cluster.canary is None


def test_policy_given_by_name() -> None:
    spec = PolicySpec.model_validate("random")
    assert (spec.spec, spec.options, spec.canary, spec.shadow) == ({"name": "random"}, {}, None, ())
