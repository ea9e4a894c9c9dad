"""Outcomes of thresholds for other tools: JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from experiments.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Check:
    """A threshold of an entry. `passed`: None: not judged; `message`: by how much it was met or missed."""

    label: str
    threshold: str
    passed: bool | None
    message: str


def report_checks(suite: str, checks: Sequence[Check], junit: Path | None) -> None:
    """Write checks to `junit`, and annotate failures in GitHub Actions. Raises `BadInputError` when it cannot."""
    if junit is not None:
        try:
            junit.write_bytes(junit_xml(suite, checks))
        except OSError as error:
            raise BadInputError(f"--junit: {junit}: {error.strerror}") from None
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for check in checks:
            if check.passed is False:
                title = escaped(f"{check.label}: {check.threshold}", ",:")
                print(f"::error title={title}::{escaped(check.message)}")


def junit_xml(suite: str, checks: Sequence[Check]) -> bytes:
    """A suite with a case for each check, whose class is the entry; what was not judged is skipped."""
    counts = {
        "tests": len(checks),
        "failures": sum(check.passed is False for check in checks),
        "skipped": sum(check.passed is None for check in checks),
        "errors": 0,
    }
    root = ElementTree.Element("testsuites")
    group = ElementTree.SubElement(root, "testsuite", name=suite)
    group.attrib |= {name: str(count) for name, count in counts.items()}
    for check in checks:
        case = ElementTree.SubElement(group, "testcase", classname=check.label, name=check.threshold)
        if check.passed is not True:
            kind = "skipped" if check.passed is None else "failure"
            ElementTree.SubElement(case, kind, message=check.message)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def escaped(text: str, further: str = "") -> str:
    """Text in a command of GitHub Actions; a property may not contain `further` either."""
    for character in "%\r\n" + further:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
