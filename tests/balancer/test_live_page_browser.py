"""The live page in Chromium: what it shows, what it asks for, and a change of policy under load."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from tests.balancer.chromium import WIDE, Tab, chromium, program
from tests.balancer.conftest import Stage, response
from tests.balancer.programs import Load, Program, Start, starting, workers

pytestmark = [
    pytest.mark.peer,
    pytest.mark.second_tier,
    pytest.mark.timeout(180),
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

REQUESTS = 3000
"""Answered while policies change. 100,000 take minutes with clients in Python."""


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with starting() as start:
        yield start


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """A page that must have reported no problem at the end, and asked no other host."""
    async with chromium() as tab:
        yield tab
        assert tab.problems == []
        hosts = {url.split("/")[2] for url in tab.requests if not url.startswith("data:")}
        assert len(hosts) == 1
        assert next(iter(hosts)).startswith("127.0.0.1:")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


async def watched(start: Start, stage: Stage, *, token: str = "", number: int = 2) -> tuple[Program, str]:
    """A balancer with the page on an address of its own."""
    those = [await stage.worker(response()) for _ in range(number)]
    port = free_port()
    listen, url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/-/"
    if token:
        program = await start(*workers(*those), BALANCER_ADMIN__LISTEN=listen, BALANCER_ADMIN__TOKEN=token)
        return program, url
    return await start(*workers(*those), BALANCER_ADMIN__LISTEN=listen), url


def shown(number: int) -> str:
    return f"{number:,}"


async def test_policy_changed_from_the_page_under_load(start: Start, stage: Stage, tab: Tab) -> None:
    """No request is lost, the page reports success, and then shows the numbers of the status."""
    program, url = await watched(start, stage)
    await tab.show(WIDE)
    await tab.open(url)
    await tab.eventually("document.querySelector('#link')?.textContent === 'live'")
    await tab.eventually("document.querySelectorAll('#policy-name option').length > 10")
    load = Load(program)
    for name in ("least-in-flight", "peak-ewma", "round-robin"):
        await load.answers(REQUESTS // 6)
        choose = "const list = document.querySelector('#pool'); list.value = 'api'; list.onchange()"
    await tab.value(
        f"void setTimeout(() => {{ {choose} }})"
    )  # later: the answer must not be lost with the page
    await tab.eventually("document.querySelector('#endpoints')?.textContent.includes('api-0')")
    assert await tab.value("document.querySelector('#pool').value") == "api"
    assert not await tab.value("document.querySelector('#endpoints').textContent.includes('main-0')")
