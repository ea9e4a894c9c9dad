"""The live page of an experiment: what it forwards from one balancer after another, who may read it, and Chromium."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientSession

from experiments.__main__ import cli
from experiments.commands.session import present
from experiments.errors import BadInputError
from experiments.live_page import follower
from experiments.live_page.follower import Feed, Follower, events_of
from experiments.live_page.process import LivePage, host_and_port, moments_of
from experiments.live_page.server import READ_ONLY
from experiments.platform.terminal import PlainConsole
from experiments.scenario.events import Event
from tests.experiments.offspring import children_of
from tests.support.chromium import WIDE, Tab, chromium, program
from tests.support.command_line import complaint
from tests.support.result_sets import write_results
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, response

SCENARIO = """
name = "tiny"
question = "Does the page follow?"
baseline = "round-robin"
home_region = "near"
time_scale = 1.0
warmup = 2
blocks = 1
timeout = 20.0
[load]
mode = "open"
rate = 20
duration = 5.0
[[regions]]
name = "near"
workers = 2
rtt = 0.02
[[regions]]
name = "far"
workers = 1
rtt = 0.05
[[events]]
at = 1.0
kind = "slow"
value = 3
target = "near-0"
[[entries]]
label = "round-robin"
policy = "round-robin"
[[entries]]
label = "steelyard"
policy = "steelyard"
"""


def point(at: float) -> dict[str, Any]:
    return {"at": at, "rate": 1.0}


class FakeBalancer(ScriptedWorker):
    """A balancer that sends snapshots as the test asks for them; each request is for its stream."""

    def __init__(self, name: str) -> None:
        super().__init__(self._stream)
        self.name = name
        self.points = asyncio.Queue[float | None]()

    async def _stream(self, wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await wire.send(b"event: history\ndata: []\n\n")
        while (at := await self.points.get()) is not None:
            data = json.dumps({"name": self.name, "point": point(at)}).encode()
            await wire.send(b"event: snapshot\n")
            await wire.send(b"data: " + data + b"\n\n")

    @property
    def tokens(self) -> list[bytes | None]:
        return [request.value(b"Authorization") for request in self.requests]


async def following(events: AsyncIterator[bytes], name: str) -> Any:
    async with asyncio.timeout(20):
        async for text in events:
            first, _, data = text.removesuffix(b"\n\n").partition(b"\n")
            if first == b"event: " + name.encode():
                return json.loads(data.removeprefix(b"data: "))
    raise AssertionError(f"no {name}")


# --- the feed and what it follows


async def test_points_of_all_runs_are_kept() -> None:
    """A viewer that comes later sees the charts from the first balancer on; the newest snapshot is sent at once."""
    feed = Feed()
    one, other = FakeBalancer("one"), FakeBalancer("other")
    problems: list[str | None] = []
    follow = Follower(feed, problems.append)
    async with one, other:
        events = feed.events()
        follow.follow(one.url, "secret")
        one.points.put_nowait(1.0)
        assert (await following(events, "snapshot"))["name"] == "one"
        assert one.tokens == [b"Bearer secret"]
        follow.leave()
        follow.follow(other.url, None)
        other.points.put_nowait(2.0)
        assert (await following(events, "snapshot"))["name"] == "other"
        assert other.tokens == [None]
        late = feed.events()
        assert await following(late, "history") == [point(1.0), point(2.0)]
        assert (await following(late, "snapshot"))["name"] == "other"
        await late.aclose()
        await events.aclose()
        follow.leave()
    assert set(problems) == {None}


async def test_nothing_is_followed_without_viewers() -> None:
    """The stream of the balancer is opened with the first viewer and left after the last."""
    feed, balancer = Feed(), FakeBalancer("one")
    follow = Follower(feed, lambda problem: None)
    async with balancer:
        follow.follow(balancer.url, None)
        await asyncio.sleep(0)
        assert balancer.requests == []
        events = feed.events()
        balancer.points.put_nowait(1.0)
        await following(events, "snapshot")
        assert len(balancer.requests) == 1
        await events.aclose()
        assert not feed.watched.is_set()
        follow.leave()


async def test_interrupted_stream_is_reported_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY", 0.01)
    feed, balancer = Feed(), FakeBalancer("one")
    problems = asyncio.Queue[str | None]()
    follow = Follower(feed, problems.put_nowait)
    events = feed.events()
    reading = asyncio.ensure_future(following(events, "snapshot"))
    follow.follow("http://127.0.0.1:9", None)  # discard: no test listens there
    async with asyncio.timeout(20):
        assert "no snapshots from http://127.0.0.1:9" in (await problems.get() or "")
    async with balancer:
        follow.follow(balancer.url, None)
        balancer.points.put_nowait(1.0)
        balancer.points.put_nowait(None)
        assert (await reading)["point"] == point(1.0)
        balancer.points.put_nowait(2.0)
        assert (await following(events, "snapshot"))["point"] == point(2.0)
        assert len(balancer.requests) == 2
        follow.leave()
    await events.aclose()


async def test_clock_that_is_set_back_starts_the_charts_anew() -> None:
    """A restarted machine counts from zero; points out of order would be drawn as none."""
    feed = Feed()
    feed.show_snapshot({"point": point(500.0)})
    feed.show_snapshot({"point": point(1.0)})
    assert await following(feed.events(), "history") == [point(1.0)]


async def test_events_that_arrive_in_pieces() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for each in (b"event: a\nda", b"ta: 1\n", b"\nevent: b\ndata: x: y\n\nevent: c"):
            yield each

    assert [found async for found in events_of(pieces())] == [("a", b"1"), ("b", b"x: y")]


# --- the process


@pytest.fixture
async def balancer() -> AsyncIterator[str]:
    """The URL of `admin.listen` of a balancer with one worker."""
    stage = Stage()
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    sock = stage.running.listening.admin.tcp
    assert sock is not None
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    await stage.close()


async def test_page_follows_a_balancer(balancer: str) -> None:
    """Real snapshots, notes, no change of anything, and no answer to the pages of other hosts."""
    page = await asyncio.to_thread(LivePage("0").__enter__)
    try:
        async with ClientSession() as session:
            page.note("steady", "steelyard, block 1 of 8", 3, 16)
            page.follow(balancer)
            async with session.get(f"{page.url}stream") as stream:
                events = decoded(stream.content.iter_any())
                note = {"title": "steady", "text": "steelyard, block 1 of 8", "done": 3, "total": 16}
                while (found := await following(events, "note"))["state"] is not None:
                    pass
                assert found == {**note, "state": None, "read_only": True}
                snapshot = await following(events, "snapshot")
                assert [each["id"] for each in snapshot["endpoints"]] == ["w0"]
                page.end()
                assert (await following(events, "note"))["state"] == "ended"
            for url in (page.url, page.url.removesuffix("/-/")):
                async with session.get(url) as document:
                    assert (document.status, "Steelyard" in await document.text()) == (200, True)
            for method, path in (("PUT", "policy"), ("PATCH", "endpoints/w0"), ("POST", "explain")):
                async with session.request(method, page.url + path, json={}) as refused:
                    assert (refused.status, (await refused.json())["error"]) == (405, READ_ONLY)
            for fields in (
                {"Host": "evil.example"},
                {"Origin": "http://evil.example"},
                {"Sec-Fetch-Site": "cross-site"},
                {"X-Forwarded-For": "192.0.2.1"},
            ):
                for path in ("", "stream", "policies"):
                    async with session.get(page.url + path, headers=fields) as refused:
                        assert refused.status == 403
    finally:
        await asyncio.to_thread(page.__exit__, None, None, None)


async def decoded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for name, data in events_of(chunks):
        yield b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def test_page_ends_with_its_experiment_and_a_taken_port_is_one_line() -> None:
    """Its standard input is closed when the experiment is killed."""
    with LivePage("127.0.0.1:0") as page:
        process = page._process
        assert process is not None
        assert process.poll() is None
        port = page.url.split(":")[2].split("/")[0]
        with (
            pytest.raises(BadInputError, match=r"--page: cannot listen on 127\.0\.0\.1:.*in use"),
            LivePage(port),
        ):
            pass
    assert process.returncode == 0


# --- the command line


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("9180", ("127.0.0.1", 9180)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:80", ("::1", 80)),
        (":7", ("127.0.0.1", 7)),
    ],
)
def test_address(address: str, found: tuple[str, int]) -> None:
    assert host_and_port(address) == found


@pytest.mark.parametrize(
    "address", ["", "x", "0.0.0.0:80", "example.org:80", "127.0.0.1", "70000", "-1", "[::]:1"]
)
def test_address_of_other_machines_is_refused(address: str) -> None:
    for command in (("run", "steady"), ("live", "http://127.0.0.1:9", "--policies", "random,steelyard")):
        assert "--page: " in complaint(cli, "experiments", *command, f"--page={address}")


def test_simulated_run_has_no_page() -> None:
    line = complaint(cli, "experiments", "run", "steady", "--simulated", "--page", "0")
    assert "only for measured runs" in line


class Notes(LivePage):
    """Keeps what is to be shown."""

    def __init__(self) -> None:
        super().__init__("0")
        self.texts: list[str] = []

    def note(self, title: str, text: str, done: int = 0, total: int = 0) -> None:
        self.texts.append(text)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(("runs", "begins"), [(3, "Stopped. No verdict: "), (None, "No verdict: ")])
def test_the_last_note_says_that_a_campaign_was_stopped(
    tmp_path: Path, runs: int | None, begins: str
) -> None:
    write_results(tmp_path / "r", blocks=1, requests=60, stop_after=runs)
    page = Notes()
    present(tmp_path / "r", PlainConsole(), page=page)
    (text,) = page.texts
    assert text.startswith(begins)


def test_events_of_a_scenario() -> None:
    event = Event(at=2.0, lasts=3.0, target="near", kind="slow", value=4.0)
    assert moments_of(event) == [(2.0, "slow 4 of near begins"), (5.0, "slow 4 of near ends")]
    assert moments_of(Event(at=1.0, target="near-0", kind="drain")) == [(1.0, "drain of near-0 begins")]


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    async with chromium() as tab:
        yield tab


@pytest.mark.peer
@pytest.mark.second_tier
@pytest.mark.timeout(180)
@pytest.mark.skipif(program() is None, reason="Chromium is not installed")
async def test_page_of_a_campaign_in_chromium(tmp_path: Path, tab: Tab) -> None:
    """Both runs and the time between them: endpoints, policies, events, no controls, and charts that stay."""
    file, out = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(SCENARIO, encoding="utf-8")
    argv = [sys.executable, "-m", "experiments", "run", str(file), "--out", str(out), "--page", "0"]
    campaign = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    assert campaign.stdout is not None
    try:
        url = (await campaign.stdout.readline()).decode().removeprefix("Live page: ").strip()
        await tab.show(WIDE)
        await tab.open(url)
        policies = set[str]()
        for label in ("first", "second"):
            await tab.eventually("document.querySelector('#link')?.textContent === 'live'")
            await tab.eventually("document.querySelectorAll('tr.endpoint').length === 3")
            policies.add(await tab.value("find('[data-key=\"policy.name\"]').textContent"))
            assert await tab.value("[...document.querySelectorAll('tr.endpoint')].map((row) => row.dataset.id)") == [
                "near-0", "near-1", "far-0",
            ]  # fmt: skip
            for control in ("#policy-form", "#explain", "tr.endpoint button"):
                assert await tab.value(f"getComputedStyle(find('{control}')).display") == "none"
            await tab.eventually("find('#note span').textContent.includes('slow 3 of near-0 begins')")
            before = await tab.value("charts.points.length")
            await tab.eventually(
                f"find('#link').textContent === '{'between runs' if label == 'first' else 'ended'}'"
            )
            assert await tab.value("charts.points.length") >= max(before, 2)
            assert await tab.value("document.title.split(' · ')[0] === find('#link').textContent")
            assert await tab.value("find('#condition').hidden")
        assert policies == {"round-robin", "steelyard"}
        assert "verdict" in await tab.value("find('#note span').textContent")
        assert not await tab.value("find('#events ol').textContent.includes('restarted')")
        assert tab.problems == []
        assert {address.split("/")[2] for address in tab.requests if not address.startswith("data:")} == {
            url.split("/")[2]
        }
        await asyncio.wait_for(campaign.communicate(), 60)
    finally:
        if campaign.returncode is None:
            campaign.terminate()
            await campaign.communicate()


@pytest.mark.second_tier
async def test_ctrl_c_ends_the_page(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(SCENARIO, encoding="utf-8")
    argv = [sys.executable, "-m", "experiments", "run", str(file), "--page", "0"]
    campaign = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, cwd=tmp_path)
    assert campaign.stdout is not None
    line = await campaign.stdout.readline()
    assert line.startswith(b"Live page: http://127.0.0.1:")
    assert children_of(campaign.pid)
    while b", into " not in await campaign.stdout.readline():
        assert not campaign.stdout.at_eof()
    campaign.send_signal(signal.SIGINT)
    await asyncio.wait_for(campaign.communicate(), 30)
    assert campaign.returncode == 130
    async with ClientSession() as session:
        with pytest.raises(ClientConnectorError):
            await session.get(line.decode().removeprefix("Live page: ").strip())
