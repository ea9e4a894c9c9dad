"""The dashboard and the alert rules use metrics, labels and label values that a running balancer exports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from balancer.cluster.condition import DOWN, Condition
from balancer.control.admin.metrics import metrics_text
from balancer.errors import NOT_OF_CLIENTS
from policies.facts import OutcomeKind
from tests.support.admin_requests import local, samples_of
from tests.support.root import ROOT
from tests.support.stage import Stage, endpoint
from tests.support.wire import get, response

DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "steelyard.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = QUERIES + [rule["expr"] for rule in RULES]

METRIC = re.compile(r"\b((?:steelyard|process)_\w+|up\b)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!=|=)\s*"([^"]*)"')
FROM_PROMETHEUS = {"job", "instance"}


async def exported(stage: Stage) -> dict[str, set[str]]:
    """The labels of every sample that a balancer exports, with all that the dashboard shows switched on."""
    named = {"endpoints": [endpoint(await stage.worker(response()), "a0")]}
    routes = [{"prefix": "/named", "cluster": "named"}]
    await stage.serve(
        await stage.worker(response()), stage.dead_port(),
        hedging={"enabled": True}, routes=routes, clusters={"named": named},
    )  # fmt: skip
    for _ in range(4):
        await stage.ask(get())
    await stage.ask(get(b"/named"))
    await stage.ask(get(b"/", b"Transfer-Encoding: gzip"))
    found: dict[str, set[str]] = {"up": set()}  # Prometheus' own
    for family in text_string_to_metric_families(metrics_text(stage.control_plane)[0].decode()):
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name if family.type != "counter" else f"{family.name}_total"] = labels
        found |= {sample.name: set(sample.labels) for sample in family.samples}
    # no request was dropped, so it has no sample
    found["steelyard_queue_dropped_total"] = {"cluster", "reason"}
    return found


async def test_every_metric_and_label_exists(stage: Stage) -> None:
    known = await exported(stage)
    assert len(EXPRESSIONS) > 20
    for expression in EXPRESSIONS:
        names = METRIC.findall(expression)
        assert names, expression
        for name, matchers in names:
            assert name in known, expression
            assert {label for label, _ in MATCHER.findall(matchers)} <= known[name] | FROM_PROMETHEUS, (
                expression
            )
        available = set().union(*(known[name] for name, _ in names)) | FROM_PROMETHEUS
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            assert {label.strip() for label in group.split(",")} <= available, expression


def test_an_alert_fires_without_any_balancer() -> None:
    """Also if Prometheus knows none: a discovered one that is gone has no `up`."""
    [rule] = [rule for rule in RULES if "absent(" in rule["expr"]]
    assert {name for name, _ in METRIC.findall(rule["expr"])} == {"up", "steelyard_ready"}


async def test_failures_are_counted_from_0_on(stage: Stage) -> None:
    """Prometheus takes the first value of a counter for no increase, so that it would miss the first failures."""
    named = {"named": {"endpoints": [endpoint(stage.dead_port(), "a0")]}}
    await stage.serve(stage.dead_port(), clusters=named, routes=[{"prefix": "/named", "cluster": "named"}])

    def counts() -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
        found = samples_of(metrics_text(stage.control_plane)[0].decode())
        errors, responses = (
            {
                tuple(labels): number
                for (name, *labels), number in found.items()
                if name == f"steelyard_{what}_total"
            }
            for what in ("errors", "responses")
        )
        return errors, responses

    errors, responses = counts()
    assert not any((*errors.values(), *responses.values()))
    assert {*errors} == {(cluster, reason) for cluster in ("default", "named") for reason in NOT_OF_CLIENTS}
    assert (await stage.ask(get(b"/named"))).status == 502
    after = counts()
    assert [{*one} for one in after] == [{*errors}, {*responses}]
    assert (after[0]["named", "connect_failed"], after[1]["named", "502"]) == (1, 1)


async def test_clusters_are_told_apart(stage: Stage) -> None:
    """What is measured for each cluster is grouped by cluster and says so; the dashboard shows those that are chosen.

    A number that stands alone is that of all chosen clusters.
    """
    of_cluster = {name for name, labels in (await exported(stage)).items() if "cluster" in labels}
    assert "steelyard_requests_total" in of_cluster
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            names = METRIC.findall(target["expr"])
            chosen = ['cluster=~"$cluster"' in matchers for _, matchers in names]
            assert chosen == [name in of_cluster for name, _ in names], panel["title"]
            if any(chosen) and panel["type"] != "stat":
                assert_grouped(target["expr"])
                assert panel["type"] == "table" or "{{cluster}}" in target["legendFormat"], panel["title"]
    variable = DASHBOARD["templating"]["list"][-1]
    # also of a balancer whose cluster has no name
    assert (variable["name"], variable["allValue"]) == ("cluster", ".*")
    for rule in RULES:
        if of_cluster.intersection(name for name, _ in METRIC.findall(rule["expr"])):
            assert_grouped(rule["expr"])
            assert "$labels.cluster" in rule["annotations"]["summary"], rule["alert"]


def assert_grouped(expression: str) -> None:
    """Check that no aggregation drops the label `cluster`."""
    aggregations = re.findall(r"\b(?:sum|min|max|avg|count)\b(?: by \(([^)]*)\))?", expression)
    assert all("cluster" in labels.split(", ") for labels in aggregations), expression


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("condition", {condition.value for condition in Condition}),
        ("outcome", {kind.value for kind in OutcomeKind if kind.is_failure}),
    ],
)
def test_every_label_value_exists(label: str, values: set[str]) -> None:
    used = [
        pattern
        for expression in EXPRESSIONS
        for name, pattern in MATCHER.findall(expression)
        if name == label
    ]
    assert used
    assert {value for pattern in used for value in pattern.split("|")} <= values


def test_conditions_of_the_alert_are_those_that_are_down() -> None:
    [rule] = [rule for rule in RULES if rule["alert"] == "SteelyardEndpointDown"]
    [pattern] = [pattern for name, pattern in MATCHER.findall(rule["expr"]) if name == "condition"]
    assert set(pattern.split("|")) == {condition.value for condition in DOWN}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_names_its_severity_and_uses_its_own_labels(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    groups = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
    kept = {label.strip() for group in groups for label in group.split(",")}
    assert used <= (kept if groups else {"instance", "cluster"}), used - kept


async def test_scrape_configuration_reads_the_metrics_and_the_rules(stage: Stage) -> None:
    folder = DEPLOY / "prometheus"
    document = yaml.safe_load((folder / "prometheus.yaml").read_text(encoding="utf-8"))
    assert [(folder / name).is_file() for name in document["rule_files"]] == [True]
    [job] = document["scrape_configs"]
    patterns = [pattern for rule in RULES for pattern in re.findall(r'job=~"([^"]*)"', rule["expr"])]
    assert len(patterns) == 2
    assert all(re.fullmatch(pattern, job["job_name"]) for pattern in patterns)
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    client = await stage.listen_client()
    answer = await client.ask(local(job["metrics_path"].encode()))
    assert b"steelyard_ready 1.0" in answer.body


def test_panels_do_not_overlap_and_name_a_data_source_variable() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {"${source}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
