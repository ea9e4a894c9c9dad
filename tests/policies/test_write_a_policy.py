"""docs/write-a-policy.md: its policy is complete, keeps the contract, and can be configured as described."""

from __future__ import annotations

import sys
import tomllib
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.configuration import load
from policies import RequestFacts, contract, describe, from_spec, registry
from policies.contract import Trial, endpoints
from policies.loading.library import Library
from policies.registry import GROUP
from tests.support.documentation import block_of

block = partial(block_of, "docs/write-a-policy.md")


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page's code defines."""
    names: dict[str, Any] = {}
    exec(block("policy"), names)
    return names


def test_the_policy_is_about_fifteen_lines() -> None:
    body = block("policy").partition("class ")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 15


@pytest.mark.no_cover
def test_the_policy_keeps_the_contract(page: dict[str, Any]) -> None:
    """By the test that the page shows."""
    exec(block("test"), page)
    page["test_it_keeps_the_contract"]()


def test_policy_sends_a_key_to_the_same_endpoint(page: dict[str, Any]) -> None:
    trial = Trial(page["QuickerOfTwo"], endpoints(1, 1, 1, 1))
    trial.facts = RequestFacts(key="a client")
    assert len({trial.send().id for _ in range(20)}) == 1


def test_trial_shows_a_smaller_share_of_the_slow_endpoint(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    exec(block("trial"), page)
    picked = page["trial"].picked()
    assert picked["here-0"] < picked.total() / 6
    assert "here-0" in capsys.readouterr().out


def test_policy_can_be_configured_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tomllib.loads(block("entry point"))["project"]["entry-points"][GROUP]
    info = tmp_path / "my_policies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    (tmp_path / "my_policies.py").write_text(block("policy"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    spec = tomllib.loads(block("configuration"))["policy"]
    assert type(from_spec(spec, Random(1))).__name__ == "QuickerOfTwo"
    assert "drawn at random" in describe()["quicker-of-two"]


def test_the_policy_with_a_memory(tmp_path: Path) -> None:
    """It keeps the contract and its key, and its configuration is valid."""
    path = tmp_path / "sticky.py"
    path.write_text(block("memory"))
    make = registry.find(f"{path}:Sticky", Library())
    contract.check(make)
    trial = Trial(make, endpoints(1, 1, 1))
    trial.facts = RequestFacts(key="a client")
    [loaded] = {trial.send().id for _ in range(20)}
    found = set()
    for number in range(20):
        trial.facts = RequestFacts(key=str(number))
        found.add(trial.send().id)
    assert found == {"here-0", "here-1", "here-2"} - {loaded}
    endpoint = '[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:1"\n'
    (tmp_path / "balancer.toml").write_text(block("key") + endpoint)
    settings = load(tmp_path / "balancer.toml", {})
    assert settings.policy.options == {"seconds": 300}
    assert (settings.key.by, settings.key.name) == ("header", "X-User")
