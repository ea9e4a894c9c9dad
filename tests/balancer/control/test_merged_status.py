"""Status, metrics and latencies of several processes merged into one document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.control.admin.channel import SiblingChannel
from balancer.control.admin.merge import merged, merged_metrics
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.policy_report import shadow_status, summary
from balancer.control.admin.status import latency_status
from policies.algorithms.random_choice import RandomChoice
from policies.insight.shadow import Shadow
from policies.stats.load import Histogram
from tests.support.admin_requests import samples_of
from tests.support.stage import Stage
from tests.support.wire import get, response


@pytest.mark.parametrize(
    ("values", "whole"),
    [
        ([1, 2], 3),
        ([1.0, 2.5], 2.5),
        ([None, 2], 2),
        ([None, None], None),
        ([True, False], False),
        (["a", "a"], "a"),
        ([{"x": 1}, {"x": 2, "y": 3}], {"x": 3, "y": 3}),
        ([[{"id": "a", "n": 1}], [{"id": "b", "n": 5}, {"id": "a", "n": 2}]],
         [{"id": "a", "n": 3}, {"id": "b", "n": 5}]),
        ([[1, 2], [3, 4]], [4, 6]),
        ([["a", "b"], ["b", "c"]], ["a", "b", "c"]),
        ([[{"name": "a", "n": 1}], [{"name": "a", "n": 2}]], [{"name": "a", "n": 3}]),
        ([[[1]], [[2]]], [[1]]),
        ([[], []], []),
    ],
)  # fmt: skip
def test_merged_values(values: list[Any], whole: Any) -> None:
    """Counters are summed, gauges use the maximum, flags must hold in every process."""
    assert merged([{"value": value} for value in values]) == {"value": whole}


def test_exceptions() -> None:
    """Flags that hold in any process, and values that are equal in all."""
    assert merged([{"draining": True}, {"draining": False}]) == {"draining": True}
    assert merged([{"max_in_flight": 8}, {"max_in_flight": 8}]) == {"max_in_flight": 8}
    assert merged([{"options": {"choices": 3}}] * 2) == {"options": {"choices": 3}}
    assert merged([{"ejected": True}, {"ejected": False}]) == {"ejected": True}
    assert merged([{"done": 2}, {"done": 1}]) == {"done": 2}
    assert merged([{"pace": 1.5}, {"pace": 2.0}]) == {"pace": 3.5}
    sources = [{"source": "file f", "endpoints": 3, "problem": problem} for problem in (None, "gone")]
    assert merged([{"discovery": [source]} for source in sources]) == {"discovery": [sources[1]]}


def test_pooled_latencies() -> None:
    """Quantiles and mean of the pooled histogram."""
    one, other = Histogram(), Histogram()
    one.record(1.0)
    for _ in range(3):
        other.record(3.0)
    documents = [{"latency": {"counts": each.counts, "total": each.total}} for each in (one, other)]
    both = Histogram.of([sum(pair) for pair in zip(one.counts, other.counts, strict=True)], 10.0)
    assert merged(documents) == {"latency": summary(both)}
    assert (both.count, summary(both)["mean"]) == (4, 2.5)


@pytest.mark.parametrize("a", ["a", "version", "done", "counts", "differs"])
def test_ratios_of_shadows_are_of_the_merged_counts(a: str) -> None:
    """Whatever the name of an endpoint means elsewhere."""
    picks = [({a: 9, "b": 1}, {a: 1, "b": 9}), ({a: 25, "b": 25}, {a: 20, "b": 30})]
    shadows = []
    for (own, live), agreed in zip(picks, (2, 40), strict=True):
        shadow = Shadow("s", RandomChoice(Random(1)))
        shadow.seen, shadow.agreed = sum(own.values()), agreed
        shadow.picks, shadow.beside = Counter(own), Counter(live)
        shadows.append({"shadow": [shadow_status(shadow)]})
    [whole] = merged(shadows)["shadow"]
    assert (whole["seen"], whole["agreed"], whole["picks"], whole["live"]) == (
        *(60, 42), {a: 34, "b": 26}, {a: 21, "b": 39},
    )  # fmt: skip
    assert (whole["agreement"], whole["skew"]) == (0.7, round(13 / 60, 4))
    assert whole["by_chance"] == round((34 * 21 + 26 * 39) / 3600, 4)


async def test_metrics_of_two_processes(stage: Stage) -> None:
    """Every sample of one process in the same order; counters and buckets are summed."""
    await stage.serve(await stage.worker(response()), stage.dead_port())
    for _ in range(4):
        await stage.ask(get())
    one = metrics_text(stage.control_plane)[0].decode()
    stage.cluster.router.set_enabled("w1", False)
    other = metrics_text(stage.control_plane)[0].decode()
    alone, whole = samples_of(one), samples_of(merged_metrics([one, other]).decode())
    assert list(whole) == list(alone)
    for name in alone:
        if name[0].startswith("process_"):
            continue  # two readings of one process differ
        if name[0] == "steelyard_endpoint_condition" and "w1" in name:
            continue
        available = "available" in name[0]
        once = name[0].removeprefix("steelyard_").removeprefix("endpoint_") in ONCE
        assert whole[name] == (0 if available and "w1" in name else alone[name] * (1 if once else 2)), name


ONCE = frozenset(
    {
        *("available", "healthy", "share", "panic", "ejected", "configuration_good", "discovery_good"),
        *("discovered", "reloads_total", "idle_timeout_seconds"),
        *("build_info", "ready", "condition"),
    }
)
"""Samples that are not summed."""


async def test_counters_of_silent_and_ended_processes_count_on(stage: Stage, tmp_path: Path) -> None:
    """Also after many restarts; but gauges, and counters of endpoints that are gone, do not."""
    await stage.serve(await stage.worker(response()))
    for _ in range(3):
        await stage.ask(get())
    text = metrics_text(stage.control_plane)[0]
    one = samples_of(text.decode())
    for restarts in range(4):
        answering, ended = (SiblingChannel(tmp_path, index, 2) for index in range(2))
        await ended.metrics(text if restarts else text.replace(b'endpoint="w0"', b'endpoint="gone"'))
        own = await answering.metrics(text)
        whole = samples_of((await answering.all_metrics(own, "/-/metrics")).decode())
        assert whole["steelyard_requests_total",] == 6 * (restarts + 1)
        assert [*whole] == [*one]
        for name, value in one.items():
            if not name[0].startswith("process_") and not name[0].endswith(SUMMED):
                assert whole[name] == value, name
    assert len(await answering.metrics(text)) < 2 * len(text)


async def test_counters_of_an_endpoint_that_returns_begin_at_zero(stage: Stage, tmp_path: Path) -> None:
    """Also in a process that was started again, which counts on from what others have counted before."""
    await stage.serve(await stage.worker(response()))
    await stage.ask(get())
    text = metrics_text(stage.control_plane)[0]
    await SiblingChannel(tmp_path, 0, 2).metrics(text)
    channel = SiblingChannel(tmp_path, 0, 2)
    counts = []
    for name in (b"w0", b"other", b"w0"):
        found = samples_of((await channel.metrics(text.replace(b'"w0"', b'"%b"' % name))).decode())
        counts.append(found.get(("steelyard_endpoint_outcomes_total", "w0", "ok", "r"), 0))
    assert counts == [2, 0, 1]


@pytest.mark.parametrize("was_named", [False, True])
async def test_counters_outlast_the_first_and_the_last_named_cluster(
    stage: Stage, tmp_path: Path, was_named: bool
) -> None:
    """Those of the default cluster have the label `cluster` while there are others, and count on without it; also while
    only one of two processes has reloaded."""
    cluster = {"endpoints": [{"id": "n0", "address": "http://127.0.0.1:9"}]}
    await stage.serve(await stage.worker(response()))
    await stage.ask(get())
    alone = metrics_text(stage.control_plane)[0]
    assert b"cluster=" not in alone
    await stage.close()
    await stage.serve(await stage.worker(response()), clusters={"n": cluster})
    await stage.ask(get())
    named = metrics_text(stage.control_plane)[0]
    assert b'cluster="n"' in named
    before, after = (named, alone) if was_named else (alone, named)
    await SiblingChannel(tmp_path, 0, 2).metrics(before)
    found = samples_of((await SiblingChannel(tmp_path, 0, 2).metrics(after)).decode())
    mixed = samples_of(merged_metrics([before.decode(), after.decode()]).decode())
    label = [] if was_named else ["default"]
    counters = [
        ("steelyard_requests_total", *label),
        ("steelyard_responses_total", *label, "200"),
        ("steelyard_endpoint_outcomes_total", *label, "w0", "ok", "r"),
        ("steelyard_endpoint_latency_seconds_count", *label, "w0", "r"),
    ]
    assert [found[name] for name in counters] == [2] * 4
    assert {*found} == {*samples_of(after.decode())}
    assert mixed["steelyard_requests_total", "default"] == 2
    assert {*mixed} == {*samples_of(named.decode())}


async def test_counters_of_a_cluster_that_is_gone_are_forgotten(stage: Stage, tmp_path: Path) -> None:
    cluster = {"endpoints": [{"id": "w0", "address": "http://127.0.0.1:9"}]}
    await stage.serve(await stage.worker(response()), clusters={"one": cluster, "other": cluster})
    text = metrics_text(stage.control_plane)[0]
    await SiblingChannel(tmp_path, 0, 2).metrics(text.replace(b'"other"', b'"gone"'))
    assert b'"gone"' not in await SiblingChannel(tmp_path, 0, 2).metrics(text)


SUMMED = ("_total", "_bucket", "_count", "_sum")


async def test_latency_buckets_are_summed(stage: Stage) -> None:
    """/-/latency of two processes, which `experiments live` uses."""
    await stage.serve(await stage.worker(response()), policy={"name": "region-aware", "margin": 2})
    for _ in range(3):
        await stage.ask(get())
    one = json.loads(json.dumps(latency_status(stage.control_plane)))
    whole = merged([one, one])
    assert (whole["requests"], whole["errors"], whole["shortest"], whole["ratio"]) == (6, {}, 1e-4, 1.1)
    assert (whole["worker_errors"], whole["abandoned"]) == (0, 0)
    assert whole["policy"]["spec"] == {"name": "region-aware", "margin": 2}
    assert (whole["policy"]["name"], whole["policy"]["options"]) == ("region-aware", {"margin": 2})
    (endpoint,) = whole["endpoints"]
    assert sum(endpoint["buckets"]) == endpoint["outcomes"]["ok"] == 6
    assert endpoint["buckets"] == [2 * count for count in one["endpoints"][0]["buckets"]]


def test_directory_that_a_sibling_removes_while_a_process_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the question whether it exists and the listing."""

    def removed(directory: Path, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(directory)

    monkeypatch.setattr(Path, "glob", removed)
    SiblingChannel(tmp_path, 0, 2).stop()
