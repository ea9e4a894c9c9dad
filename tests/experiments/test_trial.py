"""Trials: what is warmed, what is opened beforehand, and what speaks against a run."""

from __future__ import annotations

from experiments.campaign.shelf import load_scenario
from experiments.campaign.trial import faults, first_connections, warm_requests


def test_a_policy_that_was_stood_in_for_was_not_measured() -> None:
    """More such requests than a stalled machine explains make the run invalid, with the fault quoted."""
    assert faults({"policy": {"demoted": 3, "routed": 500, "last_fault": "KeyError"}}) == (
        "the policy failed 3 of 500 times and was stood in for: KeyError",
    )
    assert faults({"policy": {"demoted": 1, "routed": 500, "last_fault": "took over 5 ms"}}) == ()
    assert faults({"policy": {"demoted": 0, "routed": 500, "last_fault": None}}) == ()
    assert faults({}) == ()


def test_connections_are_there_before_the_load() -> None:
    """The batch of a closed loop; for an open one what rate and round trip keep in flight."""
    regions, steady = load_scenario("regions"), load_scenario("steady")
    by_label = {entry.label: entry for entry in regions.entries}
    assert first_connections(regions, by_label["random"]) == 100
    assert first_connections(regions, by_label["random, batch 10"]) == 10
    assert first_connections(steady, steady.entries[0]) == round(180 * 0.58)


def test_the_warm_up_reaches_every_connection() -> None:
    """At least two requests for each that will be outstanding, and the scenario's number per worker."""
    regions = load_scenario("regions")
    entry = regions.entries[0]
    assert warm_requests(regions, entry) == 300
    assert warm_requests(regions.quickened(), entry) == 200
