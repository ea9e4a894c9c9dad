"""Names and options: what is right works, what is wrong is said in one line that names the field."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from policies import BadPolicyOption, BrokenPolicy, UnknownPolicy, describe, from_spec, known, make, registry
from policies.contract import Trial, endpoints
from policies.least_in_flight import LeastInFlight
from policies.options import between
from policies.region_aware import RegionAware

Publish = Callable[[str, str], None]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Lays out a distribution with one module and the entry points given, as an installer would."""

    def _publish(module: str, entries: str) -> None:
        info = tmp_path / "elsewhere-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entries}\n")
        (tmp_path / "elsewhere.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "elsewhere", raising=False)

    return _publish


LAST = '''
class Last:
    """The last one. Always."""
    def __init__(self, rng, *, step: int = 1, strict: bool = False, anything=None):
        self.step = step
    def pick(self, facts, available, now):
        return available[-self.step]
'''


def test_names_are_those_of_the_table() -> None:
    """Sorted, and each with one line that says what it does."""
    assert known() == sorted(registry.TABLE)
    assert all(line and "\n" not in line for line in describe().values())


def test_an_unknown_name_says_what_is_known_and_what_was_meant() -> None:
    """One line, with the nearest name."""
    with pytest.raises(UnknownPolicy) as error:
        make("round-robbin", {}, Random(1))
    assert str(error.value) == (
        f"unknown policy 'round-robbin'; known: {', '.join(known())}; did you mean 'round-robin'?"
    )
    assert error.value.exit_code == 2


def test_an_unknown_name_like_nothing_has_no_suggestion() -> None:
    """A wild guess is no help."""
    with pytest.raises(UnknownPolicy, match=r"unknown policy 'zzz'; known: [a-z0-9, -]+$"):
        make("zzz", {}, Random(1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "region-aware", "margin": -1}, "policy.margin: must be >= 0, got -1"),
        ({"name": "region-aware", "margin": True}, "policy.margin: must be a number, got True"),
        ({"name": "region-aware", "margin": "x"}, "policy.margin: must be a number, got 'x'"),
        ({"name": "latency-weighted", "explore": 2}, "policy.explore: must be from 0 to 1, got 2"),
        ({"name": "least-in-flight", "choices": 1}, "policy.choices: must be 0 (all) or >= 2, got 1"),
        ({"name": "least-in-flight", "choices": 2.5}, "policy.choices: must be a whole number, got 2.5"),
        ({"name": "random", "seed": 1}, "policy.seed: 'random' has no such option; it has none"),
        (
            {"name": "single-region", "area": "emea"},
            "policy.area: 'single-region' has no such option; its options: inner, region",
        ),
        ({"name": "single-region"}, "policy.region: 'single-region' needs it"),
        (
            {"name": "region-aware", "inner": {"name": "least-in-flight", "choices": -2}},
            "policy.inner.choices: must be 0 (all) or >= 2, got -2",
        ),
        (
            {"name": "region-aware", "inner": 3},
            "policy.inner: must be the name of a policy, or a table with a name and options",
        ),
        ({"margin": 1}, "policy: must be the name of a policy, or a table with a name and options"),
    ],
)
def test_a_bad_option_is_named(spec: dict[str, Any], message: str) -> None:
    """The path in the configuration, what is allowed, what was found."""
    with pytest.raises(BadPolicyOption) as error:
        from_spec(spec, Random(1))
    assert str(error.value) == message


def test_nan_is_no_number_in_any_range() -> None:
    """A comparison with NaN is false, so ranges must be tested for being kept, not for being broken."""
    with pytest.raises(BadPolicyOption):
        from_spec({"name": "region-aware", "margin": float("nan")}, Random(1))
    with pytest.raises(BadPolicyOption):
        between(0, 1, share=float("nan"))


def test_an_inner_name_that_is_unknown_is_said_at_once() -> None:
    """Not at the first request of a region."""
    with pytest.raises(UnknownPolicy, match="unknown policy 'p3c'"):
        from_spec({"name": "region-aware", "inner": "p3c"}, Random(1))


def test_specifications_are_names_or_tables() -> None:
    """Both forms, and policies inside policies."""
    assert isinstance(from_spec("least-in-flight", Random(1)), LeastInFlight)
    nested = {"name": "region-aware", "inner": {"name": "least-in-flight", "choices": 3}, "margin": 0.1}
    policy = from_spec(nested, Random(1))
    assert isinstance(policy, RegionAware)
    trial = Trial(lambda rng: policy, endpoints(1, 1, 1))
    trial.closed_loop(5, 1)
    assert trial.router.fallback_picks == 0


def test_another_package_adds_a_policy(publish: Publish) -> None:
    """By entry point: it has a name, a line of description, and checked options."""
    publish(LAST, "last = elsewhere:Last\nrandom = elsewhere:Last")
    assert "last" in known()
    assert describe()["last"] == "The last one. Always."
    trial = Trial(lambda rng: make("last", {"step": 2, "anything": [1]}, rng), endpoints(1, 1, 1))
    assert trial.send().id == "here-1"
    with pytest.raises(BadPolicyOption, match=r"policy.strict: must be true or false, got 1"):
        make("last", {"strict": 1}, Random(1))


def test_another_package_cannot_replace_ours(publish: Publish) -> None:
    """A name of the table means what the table says."""
    publish(LAST, "random = elsewhere:Last")
    assert type(make("random", {}, Random(1))).__name__ == "RandomChoice"


def test_a_broken_package_is_named(publish: Publish) -> None:
    """What cannot be loaded says so, in a listing too, and disturbs nobody else."""
    publish("import nothing_of_that_name", "broken = elsewhere:Gone")
    with pytest.raises(BrokenPolicy, match=r"policy 'broken' \(elsewhere:Gone\) cannot be loaded"):
        make("broken", {}, Random(1))
    assert "cannot be loaded" in describe()["broken"]
    assert make("random", {}, Random(1))
