"""Load reports in response fields; an invalid report is ignored."""

from __future__ import annotations

import pytest

from balancer.http.h1.load_report import reported_load
from policies.facts import ReportedLoad


def test_complete_report() -> None:
    block = b"\r\nDate: x\r\nX-Worker-In-Flight: 3\r\nx-worker-service-time:0.020100\r\nX-Worker-Utilization: 0.5\r\n"
    assert reported_load(block) == ReportedLoad(3, 0.0201, 0.5)


def test_partial_report() -> None:
    assert reported_load(b"\r\nX-Worker-Utilization: 1.25 ") == ReportedLoad(None, None, 1.25)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r\nServer: x\r\n",
        b"\r\nX-Worker-Name: emea-0\r\n",
        b"\r\nX-Worker-In-Flight: many\r\n",
        b"\r\nX-Worker-Utilization: -1\r\n",
        b"\r\nX-Worker-Utilization: 1.2.3\r\n",
        b"\r\nX-Worker-In-Flight: nan\r\n",
        b"\r\nNX-Worker-In-Flight: 3\r\n",
    ],
)
def test_invalid_report(block: bytes) -> None:
    assert reported_load(block) is None
