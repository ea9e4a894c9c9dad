"""Reports in llm-d's rule: what counts while they are fresh, and what after."""

from __future__ import annotations

from policies import EndpointState, RequestFacts
from policies.facts import ReportedLoad
from policies.prompts import Prompt
from tests.support.inference_routers import Driven

FULL = ReportedLoad(in_flight=100, waiting=50, kv_usage=1.0)
PROMPT = Prompt(100.0)


def llm_d(size: int, *reports: ReportedLoad) -> Driven:
    """So many endpoints under the rule, of which the first have reported these loads."""
    driven = Driven("llm-d", size, expiry=2.0, refresh=0.05)
    for state, load in zip(driven.router.states, reports, strict=False):
        driven.router.probed(state, load, 0.001, driven.clock.time)
    return driven


def test_an_old_report_is_unknown_and_never_full() -> None:
    """While its report is fresh a full endpoint gets nothing; then its own queue, of none, is the shorter one."""
    busy = ReportedLoad(waiting=1, kv_usage=0.1)
    driven = llm_d(2, FULL, busy)
    assert driven.picks(PROMPT) == {"e1"}
    driven.clock.time += 2.0
    driven.router.probed(driven.router.find("e1"), busy, 0.001, driven.clock.time)
    assert driven.picks(PROMPT) == {"e0"}


def test_reports_that_lack_a_quantity_leave_it_to_the_own_accounts() -> None:
    """The requests in flight that a worker reports do not count as its queue."""
    driven = llm_d(2, ReportedLoad(in_flight=100), ReportedLoad(waiting=1))
    assert driven.picks(PROMPT) == {"e0"}


def test_probes_go_round_and_leave_out_what_is_not_eligible() -> None:
    driven, asked = llm_d(4), list[EndpointState]()
    driven.router.on_probe = asked.append
    driven.router.set_healthy("e3", False)
    driven.router.route(RequestFacts())
    assert [state.id for state in asked] == ["e0", "e1", "e2"]
    for _ in range(8):
        driven.clock.time += 0.0125
        driven.router.route(RequestFacts())
    assert [state.id for state in asked[3:]] == ["e0", "e1", "e2"] * 2
