"""Merge the status and the metrics of the processes of one balancer.

Values are merged by type, so that a new key needs no change here: integers are counts and are summed; of floats, which
are measurements, the largest is taken; booleans are true if true in every process; lists of named objects are merged
object by object. Exceptions are `TRUE_IF_ANY`, `ALIKE`, `EACH`, `RATES`, `LEAST` and `LARGEST`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from balancer.cluster.condition import STAYING, Condition, full_text, staying_text
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.families import exposed
from balancer.control.admin.health import DRAINING, PANIC, SERVING, health_of
from balancer.control.admin.metrics import OF_CLUSTER, OF_ENDPOINTS
from balancer.control.admin.policy_report import summary
from policies.insight.shadow import ratios_of
from policies.stats.load import Histogram

TRUE_IF_ANY = frozenset({"draining", "everywhere", "ejected", "departed", "backing_off", "full", "changed"})
"""Booleans that are true if true in any process."""

ALIKE = frozenset({"max_in_flight", "options", "priority", "spec"})
"""Values that are the same in every process, or are taken from the first."""

EACH = frozenset({"done", "endpoints", "others", "in_flight_elsewhere"})
"""Integers that every process counts by itself, so that a sum would count them several times: reloads, the endpoints
that a discovery source names, and what other units report. A refused reload is counted by the process that refuses it.
"""

LISTED = frozenset({"version", "loaded"})
"""Texts that are all given if the processes differ: of a policy's file that was changed while they read it again."""

NAMED_COUNTS = frozenset({"picks", "live", "reasons"})
"""Counts by endpoint or reason, which may have any name, also one that means something here."""

RATES = frozenset({"pace"})
"""Rates per second, which are summed."""

NAMES = ("id", "source", "name", "path")
"""Keys that identify the objects of a list."""

LEAST = frozenset(
    f"steelyard_{name}"
    for name in (
        *("endpoint_available", "endpoint_healthy", "endpoint_share"),
        *("configuration_good", "discovery_good", "shared_connected", "span_export_good"),
    )
) | {"process_start_time_seconds"}
"""Gauges merged by their minimum: the share, the first start, and those that are 1 only if 1 in every process."""

LARGEST = frozenset(
    f"steelyard_{name}"
    for name in (
        *("panic", "endpoint_ejected", "endpoint_condition", "split_share"),
        *("discovered", "reloads", "route_departed", "build_info", "ready", "shared_others"),
    )
)
"""Metrics merged by their maximum: 1 if 1 in any process, or counted by each process. So are gauges in seconds."""

OF_CLUSTERS = frozenset(family.name for family in (*OF_CLUSTER, *OF_ENDPOINTS))
"""Metrics that have the label `cluster` where there are named clusters."""

REFUSED_RELOADS = (("result", "refused"),)
"""Labels of reloads that were refused, which are counted by the process that refuses them."""

SEVERITY = {condition.value: number for number, condition in enumerate(Condition)}
"""Rank of each condition, the worst last."""

OF_PROCESS = ("pid", "uptime", "clients", "in_flight", "queued", "connections", "requests")
"""Keys that are listed for each process."""


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge documents of the same shape into one."""
    whole: dict[str, Any] = _merged("", list(documents))
    return whole


def merged_status(documents: Sequence[dict[str, Any]], processes: int, pid: int) -> dict[str, Any]:
    """Merge /-/status of the processes that answer into that of the balancer; `pid` is the supervisor's."""
    whole = merged(documents)
    whole |= {"pid": pid, **merged_health(documents, whole)}
    for cluster in whole.get("clusters", ()):
        of_cluster = [
            each for one in documents for each in one.get("clusters", ()) if each["name"] == cluster["name"]
        ]
        cluster |= merged_health(of_cluster, cluster)
    rows = sorted(
        ({name: one[name] for name in OF_PROCESS} for one in documents), key=lambda row: str(row["pid"])
    )
    whole["processes"] = {"configured": processes, "answering": rows}
    return whole


def merged_health(documents: Sequence[dict[str, Any]], whole: dict[str, Any]) -> dict[str, Any]:
    """Return `readiness` and `health` of the balancer, which serves if one of its processes does."""
    found = [each["readiness"] for each in documents]
    readiness = next((one for one in (PANIC, SERVING, DRAINING) if one in found), found[0])
    return {"readiness": readiness, "health": health_of(whole | {"readiness": readiness})}


def _merged(name: str, values: list[Any]) -> Any:
    values = [value for value in values if value is not None]
    if not values:
        return None
    first = values[0]
    if name in NAMED_COUNTS and isinstance(first, dict) and {*map(type, first.values())} <= {int}:
        return dict(sum(map(Counter, values), Counter()))
    if name in LISTED:
        return ", ".join(dict.fromkeys(values)) if name == "version" else max(values)
    if name in ALIKE or isinstance(first, str):
        return first
    if isinstance(first, bool):
        return any(values) if name in TRUE_IF_ANY else all(values)
    if isinstance(first, int | float):
        is_sum = name in RATES or all(isinstance(value, int) for value in values)
        return sum(values) if is_sum and name not in EACH else max(values)
    if isinstance(first, dict):
        if "counts" in first and "total" in first:
            return summary(_pooled(values))
        names = dict.fromkeys(name for value in values for name in value)
        whole = {name: _merged(name, [value.get(name) for value in values]) for name in names}
        if "by_chance" in names:
            ratios = ratios_of(*(whole[name] for name in ("seen", "agreed", "picks", "live")))
            return whole | {name: round(value, 4) for name, value in ratios.items()}
        if "differs" in names:
            return whole | {"differs": any(_in_force(value) != _in_force(first) for value in values)}
        return whole | _merged_condition(whole, values) if "condition_text" in names else whole
    return _merged_lists(values)


def _in_force(policy: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Return the specification of a policy, and the versions of its files."""
    return policy["spec"], {file["path"]: file["version"] for file in policy["files"]}


def _merged_condition(whole: dict[str, Any], endpoints: list[dict[str, Any]]) -> dict[str, str]:
    """Return the worst condition of an endpoint, and in how many processes it has it."""
    worst = max(endpoints, key=lambda each: SEVERITY[each["condition"]])
    condition, text = worst["condition"], worst["condition_text"]
    there = sum(each["condition"] == condition for each in endpoints)
    if there < len(endpoints):
        text = f"{text}; in {there} of {len(endpoints)} processes"
    elif condition == Condition.FULL.value and whole["limit"] is not None:
        text = full_text(whole["in_flight"], whole["limit"])
    elif condition in STAYING and whole["in_flight"]:
        text = staying_text(condition, whole["in_flight"])
    return {"condition": condition, "condition_text": text}


def _pooled(histograms: list[dict[str, Any]]) -> Histogram:
    """Merge histograms given as `counts` and `total`."""
    counts = [sum(column) for column in zip(*(one["counts"] for one in histograms), strict=True)]
    return Histogram.of(counts, sum(one["total"] for one in histograms))


def _merged_lists(lists: list[list[Any]]) -> list[Any]:
    """Merge lists: named objects by name, strings by their union, equally long lists of integers element by element; of
    anything else take the first list.
    """
    members = [member for one in lists for member in one]
    if members and all(isinstance(member, str) for member in members):
        return list(dict.fromkeys(members))
    for key in NAMES:
        if members and all(isinstance(member, dict) and key in member for member in members):
            named = dict.fromkeys(member[key] for member in members)
            return [_merged("", [member for member in members if member[key] == one]) for one in named]
    if members and all(type(member) is int for member in members) and len({*map(len, lists)}) == 1:
        return [sum(column) for column in zip(*lists, strict=True)]
    return lists[0]


def counters_in(text: str) -> list[Metric]:
    """Return the counters in the metrics of a process."""
    return [each for each in text_string_to_metric_families(text) if each.type in ("counter", "histogram")]


def merged_metrics(texts: Iterable[str], last: Iterable[list[Metric]] = (), *, is_one: bool = False) -> bytes:
    """Return /-/metrics of the balancer, merged from that of each process, in the order of the first; `is_one`: of a
    process and those that it replaces.

    `last` has the counters of processes that do not answer or have ended. They count, so that none ever falls, but for
    those of endpoints and clusters that are gone: they are removed from `last`, since one that returns begins at zero.
    """
    present = [family for text in texts for family in text_string_to_metric_families(text)]
    there = [each for each in present if each.name in ("steelyard_requests", "steelyard_endpoint_available")]
    labels_there = [sample.labels for family in there for sample in family.samples]
    known = {_place(), *(_place(**labels) for labels in labels_there)}
    is_named = any("cluster" in labels for labels in labels_there)
    past = [family for counters in last for family in counters]
    for family in past:
        family.samples = [one for one in family.samples if _place(**one.labels) in known]
    families: dict[str, list[Metric]] = {}
    for family in (*present, *past):
        if family.name in OF_CLUSTERS:
            family.samples = [_of_cluster(one, is_named) for one in family.samples]
        families.setdefault(family.name, []).append(family)
    return exposed(_family(name, same, is_one) for name, same in families.items())


def _place(cluster: str = DEFAULT, endpoint: str = "", **_: str) -> tuple[str, str]:
    return cluster, endpoint


def _of_cluster(sample: Sample, is_named: bool) -> Sample:
    """Return a sample with the label `cluster`, or without it: there may have been named clusters or not before."""
    if is_named:
        return sample._replace(labels={"cluster": DEFAULT, **sample.labels})
    return sample._replace(labels={key: value for key, value in sample.labels.items() if key != "cluster"})


def _family(name: str, same: list[Metric], is_one: bool) -> Metric:
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for sample in (sample for family in same for sample in family.samples):
        values.setdefault((sample.name, tuple(sorted(sample.labels.items()))), []).append(sample.value)
    whole = Metric(name, same[0].documentation, same[0].type)
    is_measure = name in LARGEST or (same[0].type == "gauge" and name.endswith("_seconds"))
    merge = min if name in LEAST else max if is_measure else sum
    for (sample_name, labels), numbers in values.items():
        is_sum = labels == REFUSED_RELOADS or (is_one and whole.type == "counter")
        whole.add_sample(sample_name, dict(labels), sum(numbers) if is_sum else merge(numbers))
    return whole
