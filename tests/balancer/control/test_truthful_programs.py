"""What two processes say of broken workers: health, list, status, page, metrics and log, in the same words.

`test_truthful_status.py` has more cases, in this process.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.admin_requests import local
from tests.support.command_line import printed
from tests.support.live_stream import opened, snapshot_of
from tests.support.programs import PATIENCE, TWO_PROCESSES, Program, Start
from tests.support.scripts import hang
from tests.support.stage import Stage
from tests.support.wire import Script, answering, get, response

pytestmark = [pytest.mark.second_tier, pytest.mark.timeout(120)]

CONFIGURATION = """\
policy = "round-robin"
retries = 0
[health_checks]
path = "/up"
interval = 0.5
timeout = 0.5
fall = 1
[outlier_detection]
failures = 3
[timeouts]
first_byte = 1.0
"""


def serving(work: bytes, check: bytes | None = None) -> Script:
    """Answer checks with `check`, else with 200, and other requests with `work`."""
    return answering(lambda request: (check or response()) if b"/up" in request.line else work)


BROKEN = response(b"", status=b"500 Internal Server Error")
WORKERS: dict[str, Script | None] = {
    "dead": None,
    "hangs": hang,
    "fails": serving(BROKEN),
    "sick": serving(BROKEN, response(status=b"503 Service Unavailable")),
    "fine": serving(response()),
}
"""Scripts of workers by the first part of their endpoints' ids; None refuses connections."""

AGO = r" \(last \d+ s ago\)"
PANIC = "; gets requests in panic"
TEXTS = {
    "dead": "failing checks: no connection: Connection refused" + AGO,
    "hangs": "failing checks: no answer within 0.5 s" + AGO,
    "fails": r"ejected, \d+ s left \(consecutive failures\)",
    "sick": "failing checks: status 503" + AGO,
    "fine": "ready",
}
"""What all views say of such an endpoint."""

LINES = {
    "dead": "down: failing checks: no connection: Connection refused",
    "hangs": "down: failing checks: no answer within 0.5 s",
    "fails": r"(ejected for \d+ s: consecutive failures|down in 1 other process: ejected)",
    "sick": "down: failing checks: status 503",
}
"""What the log says of such an endpoint, once."""


@dataclass(frozen=True)
class Case:
    """Endpoints as their kinds, and what the views say of the whole. `panic` is the line about it."""

    kinds: tuple[str, ...]
    reason: str
    summary: str
    panic: str | None = None

    @property
    def ids(self) -> list[str]:
        return [f"{kind}-{number}" for number, kind in enumerate(self.kinds)]


CASES = {
    "three dead workers, a hanging one and an ejected one": Case(
        kinds=("dead", "dead", "dead", "hangs", "fails", *["fine"] * 6),
        reason="serving",
        summary="serving: 11 endpoints (6 ready, 1 ejected, 4 failing checks)",
    ),
    "panic with one endpoint left": Case(
        kinds=("dead", "sick", "fine"),
        reason="panic",
        summary="panic: 3 endpoints (1 ready, 2 failing checks); "
        "panic: health is ignored, 2 of 3 endpoints fail their checks",
        panic="panic: health is ignored, 2 of 3 endpoints fail their checks",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_all_views_agree(start: Start, stage: Stage, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = tmp_path / "balancer.toml"
    path.write_text(CONFIGURATION + "".join([await endpoint(stage, each, case) for each in case.ids]))
    expected = {each: expected_text(case, kind) for each, kind in zip(case.ids, case.kinds, strict=True)}
    program = await start(*TWO_PROCESSES, "--config", str(path), "--port", "0")
    await requests_until(program, case, expected)
    for view, asked in VIEWS.items():
        found = await asked(program)
        assert found.keys() == expected.keys(), view
        wrong = {each: text for each, text in found.items() if not re.fullmatch(expected[each], text)}
        assert not wrong, view
    await whole_is(program, case)
    await log_has(program, case)


def expected_text(case: Case, kind: str) -> str:
    if not case.panic or kind == "fine":
        return TEXTS[kind]
    # while others accept connections, one that refuses them is tried every two seconds only
    return TEXTS[kind] + (f"({PANIC})?" if kind == "dead" else PANIC)


async def endpoint(stage: Stage, name: str, case: Case) -> str:
    script = WORKERS[name.partition("-")[0]]
    port = stage.dead_port() if script is None else (await stage.worker(script)).port
    return f'[[endpoints]]\nid = "{name}"\naddress = "http://127.0.0.1:{port}"\n'


async def requests_until(program: Program, case: Case, expected: dict[str, str]) -> None:
    """Send requests, on a connection each, until the status says what is expected; it does so in all processes."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        await asyncio.gather(*(request(program) for _ in range(len(case.kinds))))
        texts = await from_status(program)
        wrong = {each: texts[each] for each, text in expected.items() if not re.fullmatch(text, texts[each])}
        if not wrong:
            return
        assert asyncio.get_running_loop().time() < deadline, wrong


async def request(program: Program) -> None:
    client = await program.client()
    await client.ask(get())
    await client.close()


# --- the views: what each says of every endpoint


async def from_status(program: Program) -> dict[str, str]:
    document = await program.status()
    return {each["id"]: each["condition_text"] for each in document["endpoints"]}


async def from_endpoints(program: Program) -> dict[str, str]:
    document = await program.ask(local(b"/-/endpoints"))
    return {each["id"]: each["condition_text"] for each in document["endpoints"]}


async def from_page(program: Program) -> dict[str, str]:
    """The snapshot of which the live page is drawn."""
    client = await program.admin_client()
    document = await snapshot_of(await opened(client))
    await client.close()
    return {each["id"]: each["condition_text"] for each in document["endpoints"]}


async def from_list(program: Program) -> dict[str, str]:
    """The column behind the id."""
    found = (
        re.match(r"(\S+-\d+) +(.+?) +in flight ", line) for line in await output(program, "endpoints", "list")
    )
    return {each[1]: each[2] for each in found if each}


async def from_table(program: Program) -> dict[str, str]:
    """The last column."""
    found = (re.match(r"(\S+-\d+)  .*  (.+)$", line) for line in await output(program, "status"))
    return {each[1]: each[2] for each in found if each}


async def output(program: Program, *words: str) -> list[str]:
    return await printed(f"http://127.0.0.1:{program.port}", *words)


VIEWS: dict[str, Callable[[Program], Awaitable[dict[str, str]]]] = {
    "status": from_status,
    "/-/endpoints": from_endpoints,
    "page": from_page,
    "list": from_list,
    "table": from_table,
}


# --- the whole


async def whole_is(program: Program, case: Case) -> None:
    """Health, readiness, metrics, and the lines above the tables.

    In panic the balancer is ready for ten seconds after a request that was answered, so one comes before.
    """
    await asyncio.gather(*(request(program) for _ in case.kinds))
    document = await program.status()
    health = await program.ask(local(b"/-/health"))
    assert health == document["health"]
    assert (health["healthy"], health["reason"], health["summary"]) == (True, case.reason, case.summary)
    client = await program.client()
    ready = await client.ask(get(b"/-/ready"))
    assert (ready.status, json.loads(ready.body)["reason"]) == (200, case.reason)
    await client.close()
    lines = await output(program, "status")
    assert case.summary in lines
    assert [line for line in await output(program, "endpoints", "list") if line.startswith("panic")] == (
        [case.panic] if case.panic else []
    )
    await asyncio.gather(*(request(program) for _ in case.kinds))
    samples = await metrics(program)
    assert samples["steelyard_ready"] == {(): 1.0}
    panic = samples["steelyard_panic"]
    assert (max(panic.values()) == 1.0) == bool(case.panic)
    conditions = {each["id"]: each["condition"] for each in document["endpoints"]}
    shown = {labels for labels, value in samples["steelyard_endpoint_condition"].items() if value}
    assert {(name, condition) for condition, name, _ in shown} == {*conditions.items()}


async def metrics(program: Program) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, and by the values of their labels in the order of the labels' names."""
    client = await program.admin_client()
    text = (await client.ask(local(b"/-/metrics"))).body.decode()
    await client.close()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def log_has(program: Program, case: Case) -> None:
    """The last line about each endpoint that is down, none about another, and one line about the panic.

    An endpoint may be unreachable or ejected before its checks fail, which is a line too.
    """
    wanted = {
        each: f"balancer: endpoint {each} is {LINES[kind]}"
        for each, kind in zip(case.ids, case.kinds, strict=True)
        if kind in LINES
    }

    def missing() -> set[str]:
        last = {each: line for line in program.lines for each in case.ids if f"endpoint {each} " in line}
        return {each for each, pattern in wanted.items() if not re.fullmatch(pattern, last.get(each, ""))}

    while missing() or (case.panic and not panics(program)):
        await program.line("^balancer: ")
    assert len(panics(program)) == bool(case.panic)
    lines = [line for line in program.lines[1:] if line not in panics(program)]
    assert len(lines) == len(set(lines)) <= 2 * len(wanted), lines
    assert all(any(f"endpoint {each} " in line for each in wanted) for line in lines), lines


def panics(program: Program) -> list[str]:
    return [
        line for line in program.lines if line.startswith("balancer: panic everywhere: health is ignored, ")
    ]
