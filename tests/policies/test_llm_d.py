"""Reports in llm-d's rule: what counts while they are fresh, and what after."""

from __future__ import annotations

from random import Random

from policies import Endpoint, EndpointState, RequestFacts, Router
from policies.contract import ManualClock
from policies.facts import ReportedLoad
from policies.inference.llm_d import LlmD
from policies.prompts import Prompt

FULL = ReportedLoad(in_flight=100, waiting=50, kv_usage=1.0)


def routers(size: int = 2) -> tuple[Router, ManualClock]:
    clock = ManualClock()
    endpoints = [Endpoint(f"e{number}", f"http://e{number}", "here") for number in range(size)]
    return Router(endpoints, LlmD(Random(1), expiry=2.0, refresh=0.05), clock, Random(1)), clock


def pick(router: Router, clock: ManualClock) -> str:
    """Where a prompt without blocks goes, as the policy sees it before it is assigned."""
    facts = RequestFacts(prompt=Prompt(100.0))
    return router.active.pick(facts, router.available, clock.time).id


def test_an_old_report_is_unknown_and_never_full() -> None:
    """While its report is fresh a full endpoint gets nothing; then its own queue, of none, is the shorter one."""
    router, clock = routers()
    router.route(RequestFacts())  # the policy learns its endpoints
    router.probed(router.find("e0"), FULL, 0.001, clock.time)
    router.probed(router.find("e1"), ReportedLoad(waiting=1, kv_usage=0.1), 0.001, clock.time)
    assert {pick(router, clock) for _ in range(20)} == {"e1"}
    clock.time += 2.0
    router.probed(router.find("e1"), ReportedLoad(waiting=1, kv_usage=0.1), 0.001, clock.time)
    assert {pick(router, clock) for _ in range(20)} == {"e0"}


def test_reports_that_lack_a_quantity_leave_it_to_the_own_accounts() -> None:
    """The requests in flight that a worker reports do not count as its queue."""
    router, clock = routers()
    router.route(RequestFacts())
    router.probed(router.find("e0"), ReportedLoad(in_flight=100), 0.001, clock.time)
    router.probed(router.find("e1"), ReportedLoad(waiting=1), 0.001, clock.time)
    assert {pick(router, clock) for _ in range(20)} == {"e0"}


def test_probes_go_round_and_leave_out_what_is_not_eligible() -> None:
    router, clock = routers(4)
    asked: list[EndpointState] = []
    router.on_probe = asked.append
    router.set_healthy("e3", False)
    router.route(RequestFacts())
    assert [state.id for state in asked] == ["e0", "e1", "e2"]
    for _ in range(8):
        clock.time += 0.0125
        router.route(RequestFacts())
    assert [state.id for state in asked[3:]] == ["e0", "e1", "e2"] * 2
