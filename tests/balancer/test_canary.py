"""Two policies side by side in a real server, and those that only look on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from balancer.admin.merge import merged_status
from balancer.admin.status import process_status
from balancer.config.sections import PolicySpec
from tests.balancer.conftest import Message, Stage, get, response

POLICY = {
    "name": "round-robin",
    "canary": {"name": "least-in-flight", "share": 0.5, "choices": 3},
    "shadow": ["random", {"name": "region-aware", "margin": 0.5}],
}


async def control(stage: Stage, method: bytes, path: bytes, body: bytes = b"") -> Message:
    head = b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (method, path, len(body))
    return await stage.ask(head + body)


async def policy_of(stage: Stage) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((await control(stage, b"GET", b"/-/policy")).body)
    return told


async def two(stage: Stage, **settings: Any) -> None:
    workers = [await stage.worker(response()) for _ in range(2)]
    await stage.serve(*workers, **settings)


async def test_there_is_neither_unless_asked_for(stage: Stage) -> None:
    await two(stage)
    told = await policy_of(stage)
    assert (told["canary"], told["shadow"], told["spec"]) == (None, [], {"name": "round-robin"})
    assert (stage.proxy.canary, stage.control_plane.shadows) == (None, ())
    assert b"steelyard_policy_" not in (await control(stage, b"GET", b"/-/metrics")).body


async def test_each_has_its_account(stage: Stage) -> None:
    await two(stage, policy=POLICY)
    for _ in range(40):
        await stage.ask(get())
    told = await policy_of(stage)
    arms = told["canary"]["arms"]
    assert [(role, arms[role]["policy"]) for role in arms] == [
        ("live", "round-robin"),
        ("canary", "least-in-flight"),
    ]
    assert arms["live"]["picks"] + arms["canary"]["picks"] == 40
    assert 8 <= arms["canary"]["picks"] <= 32
    assert arms["canary"]["outcomes"]["ok"] == arms["canary"]["latency"]["count"] == arms["canary"]["picks"]
    assert [(shadow["name"], shadow["seen"]) for shadow in told["shadow"]] == [
        ("random", 40),
        ("region-aware", 40),
    ]
    assert sum(told["shadow"][0]["picks"].values()) == 40


async def test_what_fails_is_the_fault_of_who_placed_it(stage: Stage) -> None:
    await stage.serve(stage.dead_port(), policy=POLICY, retries=0, outlier_detection={"failures": 0})
    for _ in range(20):
        await stage.ask(get())
    arms = (await policy_of(stage))["canary"]["arms"]
    assert all(arm["outcomes"]["refused"] == arm["picks"] > 0 for arm in arms.values())


async def test_they_come_and_go_while_it_runs(stage: Stage) -> None:
    """By command, and by a reload; saying `spec` again brings all of it back."""
    await two(stage)
    put = await control(stage, b"PUT", b"/-/policy", json.dumps(POLICY).encode())
    assert put.status == 200
    spec = json.loads(put.body)["spec"]
    assert spec["canary"] == POLICY["canary"]
    assert (await policy_of(stage))["canary"]["share"] == 0.5
    await control(stage, b"PUT", b"/-/policy", b'"random"')
    assert (await policy_of(stage))["canary"] is None
    assert (await control(stage, b"PUT", b"/-/policy", json.dumps(spec).encode())).status == 200
    assert (await policy_of(stage))["spec"] == spec
    await stage.reload(policy="random")
    assert stage.proxy.canary is None


async def test_whether_a_policy_could_be_put_in_force_can_be_asked(stage: Stage) -> None:
    await two(stage)
    fine = await control(stage, b"PUT", b"/-/policy?check", b'"random"')
    assert (fine.status, json.loads(fine.body)["name"]) == (200, "round-robin")
    assert (await control(stage, b"PUT", b"/-/policy?check", b'"p2x"')).status == 422


async def test_a_sticky_request_is_nobodys(stage: Stage) -> None:
    """Where its endpoint takes it no policy is asked, so it counts for none."""
    await two(stage, policy=POLICY, sticky={"header": "X-User"})
    for _ in range(10):
        await stage.ask(get(b"/", b"X-User: ann"))
    arms = (await policy_of(stage))["canary"]["arms"]
    assert sum(arm["picks"] + arm["latency"]["count"] for arm in arms.values()) == 0


async def test_metrics_tell_them_apart(stage: Stage) -> None:
    await two(stage, policy=POLICY)
    for _ in range(20):
        await stage.ask(get())
    text = (await control(stage, b"GET", b"/-/metrics")).body.decode()
    rows = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    served = [
        float(rows[f'steelyard_policy_latency_seconds_count{{policy="{name}",role="{role}"}}'])
        for name, role in (("round-robin", "live"), ("least-in-flight", "canary"))
    ]
    assert sum(served) == 20
    picks = [float(n) for row, n in rows.items() if row.startswith("steelyard_shadow_picks_total{endpoint=")]
    assert sum(picks) == 40
    assert rows['steelyard_shadow_faults_total{policy="random"}'] == "0.0"


async def test_processes_are_told_as_one(stage: Stage) -> None:
    await two(stage, policy=POLICY)
    for _ in range(10):
        await stage.ask(get())
    one = json.loads(json.dumps(process_status(stage.control_plane)))
    whole = merged_status([one, one], 2, 1)["policy"]
    arms = whole["canary"]["arms"]
    assert arms["live"]["picks"] + arms["canary"]["picks"] == 20
    assert arms["live"]["latency"]["count"] == arms["live"]["picks"]
    assert whole["shadow"][0]["seen"] == 20
    assert whole["spec"] == one["policy"]["spec"]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"name": "random", "canary": {"name": "p2x"}}, "unknown policy 'p2x'"),
        ({"name": "random", "canary": {"name": "random", "share": 0.9}}, "canary.share"),
        ({"name": "random", "canary": {"name": "random", "margin": 1}}, "policy.canary.margin"),
        ({"name": "random", "shadow": ["random", "random"]}, "listed twice"),
        ({"name": "random", "shadow": [{"name": "region-aware", "margin": -1}]}, "policy.shadow.0.margin"),
    ],
)
async def test_what_is_wrong_with_them_is_one_line(
    stage: Stage, policy: dict[str, Any], problem: str
) -> None:
    await two(stage)
    refused = await control(stage, b"PUT", b"/-/policy", json.dumps(policy).encode())
    assert refused.status == 422
    assert problem in json.loads(refused.body)["error"]
    assert stage.proxy.canary is None


def test_a_name_is_a_policy_by_itself() -> None:
    spec = PolicySpec.model_validate("random")
    assert (spec.spec, spec.options, spec.canary, spec.shadow) == ({"name": "random"}, {}, None, ())
