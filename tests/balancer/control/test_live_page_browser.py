"""The live page in Chromium: what it shows, what it asks for, and a change of policy under load."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.platform.ports import free_ports
from tests.support.admin_requests import TOKEN
from tests.support.chromium import NARROW, WIDE, Tab, chromium, program
from tests.support.programs import Load, Program, Start, workers
from tests.support.stage import Stage
from tests.support.wire import response

pytestmark = [
    pytest.mark.peer,
    pytest.mark.second_tier,
    pytest.mark.timeout(180),
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

REQUESTS = 3000
"""Answered while policies change. 100,000 take minutes with clients in Python."""


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """A page that must have reported no problem at the end, and asked no other host."""
    async with chromium() as tab:
        yield tab
        assert tab.problems == []
        hosts = {url.split("/")[2] for url in tab.requests if not url.startswith("data:")}
        assert len(hosts) == 1
        assert next(iter(hosts)).startswith("127.0.0.1:")


async def watched(
    start: Start, stage: Stage, *, token: str = "", number: int = 2, others: Sequence[str] = ()
) -> tuple[Program, str]:
    """A balancer with the page on an address of its own."""
    those = [await stage.worker(response()) for _ in range(number)]
    [port] = free_ports(1)
    listen, url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/-/"
    if token:
        program = await start(*workers(*those), BALANCER_ADMIN__LISTEN=listen, BALANCER_ADMIN__TOKEN=token)
        return program, url
    return await start(*workers(*those), *others, BALANCER_ADMIN__LISTEN=listen), url


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
        await tab.value(
            f"(find('#policy-name').value = '{name}', find('#policy-name').onchange(),"
            " find('#policy-form').requestSubmit())"
        )
        await tab.eventually(f"find('#policy output').textContent === 'Done: the policy is {name}.'")
        await load.answers(REQUESTS // 6)
    assert await load.end() == []
    await tab.value("(find('#policy-options').value = '{\"x\": 1}', find('#policy-form').requestSubmit())")
    await tab.eventually("find('#policy output').className === 'bad'")
    assert "no such option" in await tab.value("find('#policy output').textContent")
    (logged,) = tab.problems  # Chromium reports every answer that is not 2xx
    assert "422" in logged
    tab.problems.clear()
    report = await program.status()
    assert report["requests"] >= REQUESTS
    assert report["policy"]["name"] == "round-robin"
    await tab.eventually(
        f"find('[data-key=requests]').textContent.replaceAll(',', '') >= {report['requests']}"
    )
    await assert_page_equals_the_status(tab, program)


async def test_split_changed_from_the_page(start: Start, stage: Stage, tab: Tab, tmp_path: Path) -> None:
    """The page shows the new shares; a mistake gets the balancer's own message."""
    worker = await stage.worker(response())
    clusters = "".join(
        f'[clusters.{name}]\nendpoints = [{{ id = "w0", address = "http://127.0.0.1:{worker.port}" }}]\n'
        for name in ("stable", "next")
    )
    path = tmp_path / "balancer.toml"
    path.write_text(f"[[routes]]\nsplit = {{ stable = 90, next = 10 }}\n{clusters}")
    [port] = free_ports(1)
    await start("--config", str(path), BALANCER_ADMIN__LISTEN=f"127.0.0.1:{port}")
    await tab.show(WIDE)
    await tab.open(f"http://127.0.0.1:{port}/-/")
    await tab.eventually("find('#splits input')?.value === 'stable=90 next=10'")
    apply = "find('#splits input').value = '{}', find('#splits form').requestSubmit()"
    await tab.value(f"({apply.format('stable=3 next=1')})")
    await tab.eventually("find('#splits output').textContent === 'Done.'")
    await tab.eventually("find('#splits p').textContent.startsWith('stable 75.0 %, 0 requests. next 25.0 %')")
    await tab.value(f"({apply.format('stable=3 beta=1')})")
    await tab.eventually("find('#splits output').textContent.endsWith('stable, next (*://*/*)')")
    (logged,) = tab.problems  # Chromium reports every answer that is not 2xx
    assert "404" in logged
    tab.problems.clear()


async def assert_page_equals_the_status(tab: Tab, program: Program) -> None:
    await tab.value("new Promise((go) => setTimeout(go, 1500))")  # the page is a second behind
    seen = await tab.value(
        "Object.fromEntries([...document.querySelectorAll('[data-key]')].map((e) => [e.dataset.key, e.textContent]))"
    )
    latest = await tab.value("previous")
    report: dict[str, Any] = await program.status()
    for key in ("retried", "retries_denied", "abandoned", "clients", "in_flight", "queued"):
        assert seen[key] == shown(report[key]), key
    assert seen["policy.name"] == report["policy"]["name"]
    assert seen["policy.routed"] == shown(report["policy"]["routed"])
    assert seen["requests"] == shown(latest["requests"])
    rows = await tab.value(
        "[...document.querySelectorAll('tr.endpoint')].map((row) => [...row.children].map((c) => c.textContent))"
    )
    assert len(rows) == len(report["endpoints"])
    for row, endpoint in zip(rows, report["endpoints"], strict=True):
        assert row[0].startswith(endpoint["id"])
        assert (row[1], row[3], row[7]) == ("ready", shown(endpoint["in_flight"]), "0")
        assert row[8].startswith(
            f"{endpoint['connections']['leased']} + {endpoint['connections']['idle']} idle"
        )


async def test_endpoint_drained_by_keyboard(start: Start, stage: Stage, tab: Tab) -> None:
    """Tab reaches the button of the row; the dialog takes the focus; the change is shown, listed and announced."""
    program, url = await watched(start, stage)
    await tab.show(WIDE)
    await tab.open(url)
    await tab.eventually("document.querySelectorAll('tr.endpoint button').length === 2")
    for _ in range(3):
        await tab.press("Tab")
        if await tab.value("document.activeElement.matches('tr.endpoint button')"):
            break
    assert await tab.value("document.activeElement.getAttribute('aria-label')") == "Change r-0"
    await tab.press("Enter")
    assert await tab.value("find('#manage').open && find('#manage').contains(document.activeElement)")
    await tab.value("find('#manage [value=drain]').click()")
    await tab.value("(find('#manage-weight').value = '2.5', find('#manage form').requestSubmit())")
    await tab.eventually("find('#manage output').textContent === 'Done: r-0 is drain, weight 2.5.'")
    await tab.eventually("find('tr[data-id=r-0] .badge').textContent === 'draining'")
    await tab.eventually("find('#events ol').textContent.includes('r-0 is draining')")
    await tab.eventually("find('#announcements').textContent.includes('r-0 is draining')")
    endpoint = (await program.status())["endpoints"][0]
    assert (endpoint["state"], endpoint["weight"]) == ("drain", 2.5)
    await tab.value("find('#explain').click()")
    await tab.eventually("find('#explain').textContent === 'Stop explaining'")
    load = Load(program, 1)
    await load.answers(20)
    await load.end()
    await tab.eventually("find('#picks tbody').textContent.includes('r-1')")


async def test_hot_restart_is_no_reload(start: Start, stage: Stage, tab: Tab) -> None:
    """The number of reloads falls to that of the new program."""
    _, url = await watched(start, stage)
    await tab.open(url)
    await tab.eventually("document.querySelector('#link')?.textContent === 'live'")
    await tab.eventually("previous !== null")
    with_reloads = "{{...previous, reload: {{...previous.reload, done: {}}}}}"
    change = f"changesBetween({with_reloads}, {with_reloads})"
    assert await tab.value(change.format(2, 0)) == []
    assert await tab.value(change.format(2, 3)) == ["the configuration was reloaded"]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_page_fits_the_window(start: Start, stage: Stage, tab: Tab, width: int, dark: bool) -> None:
    """No horizontal scrolling, also with a long id, landmarks and table roles, and the contrast of WCAG AA."""
    port = (await stage.worker(response())).port
    _, url = await watched(start, stage, others=["--worker", f"{'r' * 58}=http://127.0.0.1:{port}"])
    await tab.show(width, dark=dark)
    await tab.open(url)
    await tab.eventually("document.querySelectorAll('tr.endpoint').length === 3")
    assert await tab.value("document.documentElement.scrollWidth") <= width
    assert await tab.value("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    tree = (await tab.ask("Accessibility.getFullAXTree"))["nodes"]
    roles = {node["role"]["value"] for node in tree if "role" in node and not node["ignored"]}
    assert {
        "banner",
        "main",
        "table",
        "columnheader",
        "rowheader",
        "row",
        "cell",
        "status",
        "heading",
    } <= roles
    names = {node.get("name", {}).get("value") for node in tree}
    assert {"Change r-0", "Endpoints", "Options, as JSON"} <= names
    ratios = json.loads(await tab.value(CONTRASTS))
    assert len(ratios) > 50
    assert min(ratios.values()) >= 4.5, {text: ratio for text, ratio in ratios.items() if ratio < 4.5}


async def test_page_asks_for_the_token(start: Start, stage: Stage, tab: Tab) -> None:
    """Nothing is shown without it, a wrong one is refused, and it never appears in an address."""
    _, url = await watched(start, stage, token=TOKEN)
    await tab.show(WIDE)
    await tab.open(url)
    await tab.eventually("document.querySelector('#token')?.open")
    for given in ("wrong", TOKEN):
        await tab.value(f"(find('#token-value').value = '{given}', find('#token form').requestSubmit())")
        if given != TOKEN:
            await tab.eventually(
                "find('#token').open && find('#token output').textContent.includes('refused')"
            )
    await tab.eventually("find('#link').textContent === 'live'")
    assert not any(TOKEN in address for address in tab.requests)
    tab.problems[:] = [one for one in tab.problems if "404 (Not Found)" not in one]


CONTRASTS = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] > 250) return colour;
    }
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || !e.checkVisibility() || e.closest('script, style, option, noscript')) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    found[text] = Math.min(found[text] ?? 99, ratio);
  }
  return JSON.stringify(found);
})()
"""


async def test_pool_is_chosen(start: Start, stage: Stage, tab: Tab, tmp_path: Path) -> None:
    """The choice is there with named clusters only, and the page shows the chosen one."""
    main, api = await stage.worker(response()), await stage.worker(response())
    config = tmp_path / "balancer.toml"
    config.write_text(f"""\
endpoints = [{{ id = "main-0", address = "http://127.0.0.1:{main.port}" }}]
routes = [{{ prefix = "/api", cluster = "api" }}]
[clusters.api]
endpoints = [{{ id = "api-0", address = "http://127.0.0.1:{api.port}" }}]
""")
    [port] = free_ports(1)
    await start("--config", str(config), BALANCER_ADMIN__LISTEN=f"127.0.0.1:{port}")
    await tab.show(WIDE)
    await tab.open(f"http://127.0.0.1:{port}/-/")
    names = "[...(document.querySelector('#of')?.options ?? [])].map((each) => each.value).join()"
    await tab.eventually(f"{names} === 'default,api'")
    assert not await tab.value("document.querySelector('#of').hidden")
    await tab.eventually("document.querySelector('#endpoints')?.textContent.includes('main-0')")
    choose = "const list = document.querySelector('#of'); list.value = 'api'; list.onchange()"
    await tab.value(
        f"void setTimeout(() => {{ {choose} }})"
    )  # later: the answer must not be lost with the page
    await tab.eventually("document.querySelector('#endpoints')?.textContent.includes('api-0')")
    assert await tab.value("document.querySelector('#of').value") == "api"
    assert not await tab.value("document.querySelector('#endpoints').textContent.includes('main-0')")
