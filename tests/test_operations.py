"""docs/operations.md agrees with the code: every metric, error, signal and printed line is documented.

The code is read, not run, because much of it runs only on failures. A failing test states the row to add.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from balancer import errors
from balancer.config.schema.limits import RESPONSE_FIELDS
from balancer.control.admin.metrics import OF_CLUSTER, OF_ENDPOINTS, OF_PROCESS
from balancer.http.h1.response_head import HEAD_LIMIT
from balancer.tools.sidecar.server import OF_ORIGINS
from tests.support.root import ROOT
from tests.support.sources import modules, nodes_of

PAGE = "docs/operations.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def rows(section: str, columns: int) -> list[list[str]]:
    """The table rows of a section of the page, cell by cell, without heads and rules."""
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE} has no section '{section}'"
    cells = [line.strip("|").split("|") for line in found[1].splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in row] for row in cells]
    return [row for row in table if len(row) == columns and "`" in "".join(row[:2])]


def name_of(call: ast.Call) -> str:
    """The last part of the name that is called; empty if what is called has none."""
    called = call.func
    return (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )


def calls(name_ends: str) -> Iterator[tuple[str, ast.Call]]:
    """Module and call, of every call whose name ends so."""
    for module, path in modules("balancer").items():
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and name_of(node).endswith(name_ends):
                yield module, node


# --- metrics


@dataclass(frozen=True)
class Family:
    """A metric family as exposed."""

    name: str
    type: str
    labels: tuple[str, ...]

    def __str__(self) -> str:
        labels = ", ".join(f"`{label}`" for label in self.labels) or "–"
        return f"| `{self.name}` | {self.type} | {labels} | what it means | what to alert on |"


@cache
def families() -> set[Family]:
    """Every metric family that the balancer makes."""
    return {
        Family(f"{each.name}{'_total' * (each.kind == 'counter')}", each.kind, tuple(each.labels))
        for each in (*OF_PROCESS, *OF_CLUSTER, *OF_ENDPOINTS, *OF_ORIGINS)
    }


def documented_families() -> set[Family]:
    table = rows("Metrics", 5)
    return {
        Family(name.strip("`"), kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, *_ in table
    }


def test_every_metric_is_documented() -> None:
    missing = families() - documented_families()
    rows_to_add = "\n".join(str(family) for family in sorted(missing, key=str))
    assert not missing, f"{PAGE}, table of 'Metrics': add or correct\n{rows_to_add}"


def test_every_documented_metric_exists() -> None:
    gone = documented_families() - families()
    rows_to_add = "\n".join(str(family) for family in sorted(gone, key=str))
    assert not gone, f"{PAGE}, table of 'Metrics': the code has none of\n{rows_to_add}"


def test_every_metric_has_a_meaning_and_an_alert() -> None:
    for name, _, _, meaning, alert in rows("Metrics", 5):
        assert len(meaning) > 10, name
        assert alert, name


def test_metrics_in_examples_exist() -> None:
    known = {family.name for family in families()}
    parts = {f"{family.name}_{part}" for family in families() for part in ("bucket", "sum", "count")}
    assert set(re.findall(r"\bsteelyard_\w+", TEXT)) <= known | parts


# --- errors


def errors_of_responses() -> set[tuple[int, str]]:
    """Status and reason of every response of the balancer's own: error classes with a reason, and rejections."""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, errors.ForwardingError)
        and value is not errors.ForwardingError
        and "reason" in vars(value)
    ]
    found = {(kind.status, kind.reason) for kind in classes if isinstance(kind.reason, str)}
    for module, call in calls("RequestRejected"):
        status, reason = call.args[0], call.args[1]
        if not (isinstance(status, ast.Constant) and isinstance(reason, ast.Constant)):
            pytest.fail(
                f"{module}:{call.lineno}: write status and reason as literals, then {PAGE} can be held to them"
            )
        found.add((int(str(status.value)), str(reason.value)))
    return found


def documented_errors() -> set[tuple[int, str]]:
    return {(int(status), reason.strip("`")) for status, reason, *_ in rows("Errors", 4)}


def test_every_error_is_documented() -> None:
    missing = sorted(errors_of_responses() - documented_errors())
    rows_to_add = "\n".join(f"| {status} | `{reason}` | cause | what to do |" for status, reason in missing)
    assert not missing, f"{PAGE}, a table of 'Errors': add\n{rows_to_add}"


def test_every_reason_may_have_a_body() -> None:
    """In `[errors.REASON]`."""
    assert {reason for _, reason in errors_of_responses()} == errors.REASONS


def test_failures_without_fault_of_the_client_are_counted_from_0_on() -> None:
    """Those of the workers and of capacity, and that of the cluster that decides about requests."""
    parts = re.split(r"^\*\*", TEXT, flags=re.MULTILINE)
    tables = "".join(part for part in parts if part.startswith(("The workers, or", "No capacity")))
    reasons = set(re.findall(r"^\| 5\d\d \| `(\w+)`", tables, re.MULTILINE))
    assert reasons | {"authorization_failed"} == errors.NOT_OF_CLIENTS
    assert reasons.isdisjoint({"bad_version", "unknown_coding"})


def test_every_documented_error_exists() -> None:
    gone = sorted(documented_errors() - errors_of_responses())
    assert not gone, f"{PAGE}, tables of 'Errors': the code has none of {gone}"


def test_every_error_has_a_cause_and_a_remedy() -> None:
    for _, reason, cause, remedy in rows("Errors", 4):
        assert len(cause) > 3, reason
        assert len(remedy) > 3, reason


# --- signals


def test_every_signal_is_documented() -> None:
    """Except SIGKILL, which cannot be handled, and SIGCHLD, which the system sends."""
    handled = {
        node.attr
        for path in modules("balancer").values()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and re.fullmatch(r"SIG[A-Z][A-Z0-9]+", node.attr)
    }
    missing = handled - {"SIGKILL", "SIGCHLD"} - {row[0].strip("`") for row in rows("Signals", 2)}
    assert not missing, f"{PAGE}, table of 'Signals': add a row for each of {sorted(missing)}"


def test_bounds_of_a_response_head_are_documented() -> None:
    for text in (TEXT, (ROOT / "docs/http.md").read_text(encoding="utf-8")):
        assert re.search(rf"\b{HEAD_LIMIT >> 10} KiB (and|or) {RESPONSE_FIELDS} fields", text)


# --- lines


@cache
def printed_lines() -> dict[str, str]:
    """Pattern -> location, of all printed lines: errors that end the program, and lines for operators."""
    found: dict[str, str] = {}
    fatal = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and hasattr(kind, "exit_code")
    }
    for module, path in modules("balancer").items():
        pieces = {p for node in nodes_of(path) if isinstance(node, ast.JoinedStr) for p in node.values}
        for node in nodes_of(path):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = name_of(node)
                texts = node.args[:1] if name in fatal or name.endswith(("complain", "say")) else []
            elif isinstance(node, ast.JoinedStr | ast.Constant) and node not in pieces:
                texts = [node] if beginning_of(node).startswith("balancer ") else []
            found |= {pattern_of(text): f"{module}:{text.lineno}" for text in texts if beginning_of(text)}
    return found


def beginning_of(node: ast.expr) -> str:
    """The text of a literal; of an f-string the text before its first placeholder, or "{"."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and "\n" not in node.value else ""
    if isinstance(node, ast.JoinedStr):
        first = node.values[0]
        return str(first.value) if isinstance(first, ast.Constant) else "{"
    return ""


def pattern_of(node: ast.expr) -> str:
    """The text as a regular expression, with any text for a placeholder."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in parts)


def test_every_printed_line_is_documented() -> None:
    """In backticks, with a word in capitals for each placeholder."""
    documented = re.findall(r"`([^`\n]+)`", TEXT)
    missing = {
        where: pattern.replace("\\", "").replace(".*", "WORD")
        for pattern, where in printed_lines().items()
        if not any(re.search(rf"(?:^|: ){pattern}(?:$|; )", line) for line in documented)
    }
    assert not missing, (
        f"{PAGE}, tables of 'What it prints': add `{'`, `'.join(missing.values())}` ({missing})"
    )


def test_search_for_printed_lines_finds_known_ones() -> None:
    """Guards against a search that finds nothing."""
    text = "\n".join(printed_lines())
    assert all(
        part in text
        for part in ("balancer\\ ready", "stopping", "cannot\\ open", "cannot\\ use", "lost\\ until")
    )
