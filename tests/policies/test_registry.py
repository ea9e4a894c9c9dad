"""Policy names and options: valid ones work, invalid ones are named in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from experiments.__main__ import cli
from experiments.sweep.grid import EVERYTHING, every_policy
from policies import BadPolicyOption, BrokenPolicy, UnknownPolicy, describe, from_spec, known, make, registry
from policies.algorithms.least_in_flight import LeastInFlight
from policies.algorithms.region_aware import RegionAware
from policies.contract import Trial, endpoints

Publish = Callable[[str, str], None]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Install a distribution with one module and the given entry points."""

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
    """Always picks the last one."""
    def __init__(self, rng, *, step: int = 1, strict: bool = False, anything=None):
        self.step = step
    def pick(self, facts, available, now):
        return available[-self.step]
'''


def test_names_are_those_of_the_table() -> None:
    """Sorted, each with a description of one line."""
    assert known() == sorted(registry.TABLE)
    assert all(line and "\n" not in line for line in describe().values())


def test_unknown_name_lists_known_names_and_the_nearest() -> None:
    with pytest.raises(UnknownPolicy) as error:
        make("round-robbin", {}, Random(1))
    assert "'round-robbin'" in str(error.value)
    assert ", ".join(known()) in str(error.value)
    assert str(error.value).endswith("'round-robin'?")
    assert error.value.exit_code == 2


def test_unknown_name_without_similar_ones_has_no_suggestion() -> None:
    with pytest.raises(UnknownPolicy, match=r"unknown policy 'zzz'; known: [a-z0-9, -]+$"):
        make("zzz", {}, Random(1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "region-aware", "margin": -1}, "policy.margin: must be >= 0"),
        ({"name": "region-aware", "margin": True}, "policy.margin: must be a number"),
        ({"name": "region-aware", "margin": "x"}, "policy.margin: must be a number"),
        ({"name": "latency-weighted", "explore": 2}, "policy.explore: must be from 0 to 1"),
        ({"name": "least-in-flight", "tie": "first"}, "policy.tie: must be one of random, rate"),
        ({"name": "peak-ewma", "decay": 0.0}, "policy.decay: must be > 0, got 0.0"),
        ({"name": "ring-hash", "load_bound": 1.0}, "policy.load_bound: must be 0 (off) or > 1, got 1.0"),
        ({"name": "maglev", "table": 65536}, "policy.table: must be a prime number"),
        ({"name": "aperture", "balancers": 3, "index": 3}, "policy.index: must be from 0 to 2"),
        ({"name": "least-in-flight", "choices": 2.5}, "policy.choices: must be a whole number"),
        ({"name": "random", "seed": 1}, "policy.seed: "),
        ({"name": "single-region", "area": "emea"}, "options: inner, region"),
        ({"name": "single-region"}, "policy.region: "),
        (
            {"name": "region-aware", "inner": {"name": "least-in-flight", "choices": -2}},
            "policy.inner.choices: must be 0 (all) or >= 2",
        ),
        (
            {"name": "region-aware", "inner": 3},
            "policy.inner: must be the name of a policy, or a table with a name and options",
        ),
        ({"margin": 1}, "policy: must be the name of a policy, or a table with a name and options"),
    ],
)
def test_invalid_option_is_named(spec: dict[str, Any], message: str) -> None:
    """The path in the configuration, what is allowed, what was given."""
    with pytest.raises(BadPolicyOption) as error:
        from_spec(spec, Random(1))
    assert message in str(error.value)


def test_unknown_inner_policy_is_rejected_at_construction() -> None:
    """Not at the first request of a region."""
    with pytest.raises(UnknownPolicy, match="unknown policy 'p3c'"):
        from_spec({"name": "region-aware", "inner": "p3c"}, Random(1))


def test_specification_is_a_name_or_a_table() -> None:
    """Also of a policy inside a policy."""
    assert isinstance(from_spec("least-in-flight", Random(1)), LeastInFlight)
    nested = {"name": "region-aware", "inner": {"name": "least-in-flight", "choices": 3}, "margin": 0.1}
    policy = from_spec(nested, Random(1))
    assert isinstance(policy, RegionAware)
    trial = Trial(lambda rng: policy, endpoints(1, 1, 1))
    trial.closed_loop(5, 1)
    assert trial.router.fallback_picks == 0


def test_entry_point_adds_a_policy(publish: Publish) -> None:
    """With a name, a description and checked options."""
    publish(LAST, "last = elsewhere:Last\nrandom = elsewhere:Last")
    assert "last" in known()
    assert describe()["last"] == "Always picks the last one."
    trial = Trial(lambda rng: make("last", {"step": 2, "anything": [1]}, rng), endpoints(1, 1, 1))
    assert trial.send().id == "here-1"
    with pytest.raises(BadPolicyOption, match=r"policy.strict: must be true or false"):
        make("last", {"strict": 1}, Random(1))


OPTIONS = """
from __future__ import annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional
from policies import PolicyMaker
from policies.options import above, between
if TYPE_CHECKING:
    from random import Random
Seconds = Annotated[float, above(0)]
class Alias:
    __value__ = Seconds
class Each:
    def __init__(
        self, rng: Random, word: str = "", *, mode: Literal["a", 2] = "a", bound: float | None = None,
        inner: PolicyMaker | None = None, both: Annotated[int, above(0), between(-5, 10)] = 1, limit: int | None = 5,
        seconds: Optional[Seconds] = None, named: Alias = 1.0, table: Any = None,
    ):
        self.inner, self.table, self.limit = inner, table, limit
    def pick(self, facts, available, now): return available[0]
class Named:
    def __init__(self, *, name: str = ""): ...
    def pick(self, facts, available, now): return available[0]
"""
ALLOWED = "must be text, numbers, true or false, or lists and tables of these, got "


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "zzz"}, "policy.mode: must be one of a, 2, got 'zzz'"),
        ({"bound": "no"}, "policy.bound: must be a number, got 'no'"),
        ({"inner": 3}, "policy.inner: must be the name of a policy, or a table with a name and options"),
        ({"both": 0}, "policy.both: must be > 0, got 0"),
        ({"both": 11}, "policy.both: must be from -5 to 10, got 11"),
        ({"table": 1e10}, "policy.table: must be a number from -1e+09 to 1e+09, got 1"),
        ({"seconds": -1.0}, "policy.seconds: must be > 0, got -1.0"),
        ({"named": -1.0}, "policy.named: must be > 0, got -1.0"),
        ({"named": None}, "policy.named: must be a number, got None"),
        ({"table": time(7, 30)}, f"policy.table: {ALLOWED}datetime.time(7, 30)"),
        ({"table": {"days": [date(2026, 1, 1)]}}, f"policy.table: {ALLOWED}{{'days': [datetime.date"),
        ({"word": "x"}, "table; options follow a * in its constructor"),
    ],
)
def test_option_of_any_annotation_is_checked(publish: Publish, given: dict[str, Any], message: str) -> None:
    """Also within `| None` and named types, by each of several bounds; what is not checked can be shown as JSON."""
    publish(OPTIONS, "each = elsewhere:Each")
    with pytest.raises(BadPolicyOption) as error:
        make("each", given, Random(1))
    assert message in str(error.value)


def test_optional_policy_is_made_or_none(publish: Publish) -> None:
    publish(OPTIONS, "each = elsewhere:Each")
    found: Any = make("each", {"inner": "least-in-flight", "bound": None, "mode": 2}, Random(1))
    assert isinstance(found.inner(Random(1)), LeastInFlight)
    none: Any = make("each", {"inner": None, "limit": None}, Random(1))
    assert (none.inner, none.limit) == (None, None)  # whatever the default
    with pytest.raises(UnknownPolicy, match="'nonsense'"):
        make("each", {"inner": "nonsense"}, Random(1))


def test_option_cannot_be_called_name(publish: Publish) -> None:
    publish(OPTIONS, "named = elsewhere:Named")
    with pytest.raises(BrokenPolicy, match=r"^'named': an option must not be called name"):
        make("named", {}, Random(1))


def test_each_instance_has_options_of_its_own(publish: Publish) -> None:
    """What one changes is the same for the others, and in the configuration."""
    publish(OPTIONS, "each = elsewhere:Each")
    given = {"table": {"emea": [1.0]}}
    for _ in range(2):
        found: Any = make("each", given, Random(1))
        assert found.table == {"emea": [1.0]}
        found.table["emea"].append(2.0)
    assert given == {"table": {"emea": [1.0]}}


def test_references_are_those_of_policies(publish: Publish) -> None:
    """No other texts that look like one, each before it is loaded."""
    publish(OPTIONS, "each = elsewhere:Each")
    spec = {"name": "each", "table": "us:emea", "inner": {"name": "elsewhere:Each", "inner": "no.such:One"}}
    found = registry.references_in(spec)
    assert [next(found), next(found)] == ["elsewhere:Each", "no.such:One"]
    with pytest.raises(BrokenPolicy, match="no module 'no' is installed"):
        next(found)
    assert not list(registry.references_in("oracle-least-work"))


def test_entry_point_cannot_replace_a_policy_of_the_table(publish: Publish) -> None:
    publish(LAST, "random = elsewhere:Last")
    assert type(make("random", {}, Random(1))).__name__ == "RandomChoice"


def test_entry_point_that_cannot_be_loaded_is_named(publish: Publish) -> None:
    """In a listing too; other policies still work."""
    publish(
        "class Needs:\n def __init__(self, *, k: int): ...\n def pick(self, facts, available, now): ...",
        "broken = nothing_of_that_name:Gone\nmodule = importlib\nneeds = elsewhere:Needs",
    )
    with pytest.raises(
        BrokenPolicy, match=r"its options cannot be read: <module 'importlib' .*not a callable"
    ):
        make("module", {}, Random(1))
    assert registry.broken()["needs"] == "needs.k: 'needs' needs it"
    with pytest.raises(BrokenPolicy, match=r"policy 'broken' \(nothing_of_that_name:Gone\) cannot be loaded"):
        make("broken", {}, Random(1))
    assert "cannot be loaded" in describe()["broken"] == registry.broken()["broken"]
    assert every_policy(EVERYTHING) == sorted(registry.TABLE)
    ran = CliRunner().invoke(
        cli, ["sweep", "--quick", "--dry-run", "--scenarios", "steady"], catch_exceptions=False
    )
    assert (
        ran.exit_code,
        ran.output.count("Left out: policy 'broken' (nothing_of_that_name:Gone) cannot be loaded"),
    ) == (0, 1)
    assert make("random", {}, Random(1))
