"""A running balancer with a policy from a file: reload reads it again, mistakes change nothing, the status shows the
version, and only the admin socket may name new files."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from balancer.config.problems import ConfigError
from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.policy_spec import PolicySpec, plain
from balancer.configuration import load
from balancer.control.admin.merge import merged
from balancer.control.admin.policy_routes import reload_order
from policies import registry
from policies.algorithms.round_robin import RoundRobin
from tests.support.admin_requests import TOKEN, local, put_policy
from tests.support.stage import Stage
from tests.support.wire import get, response

TEXT = """
class Nth:
    def __init__(self, *, number: int = 0): self.number = number
    def pick(self, facts, available, now): return available[self.number]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TEXT)
    return tmp_path


def configured(folder: Path, policy: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "balancer.toml"
    path.write_text(f'policy = {policy}\n[[endpoints]]\nid = "a"\naddress = "http://127.0.0.1:1"\n')
    return path


def test_path_in_a_file_is_relative_to_the_file(here: Path) -> None:
    folder = here / "conf"
    path = configured(folder, '{ name = "mine.py:Nth", number = -1, canary = { name = "sub/mine.py:Nth" } }')
    (folder / "sub").mkdir()
    for target in (folder / "mine.py", folder / "sub" / "mine.py"):
        target.write_text(TEXT)
    policy = load(path, {}).policy
    assert policy.name == f"{folder}/mine.py:Nth"
    assert policy.label == "Nth"
    assert list(policy.library.versions) == [f"{folder}/mine.py", f"{folder}/sub/mine.py"]


def test_path_of_the_command_line_and_the_environment_is_relative_to_the_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configured(here / "conf", '"random"')
    assert load(path, {"policy": "mine.py:Nth"}).policy.name == f"{here}/mine.py:Nth"
    monkeypatch.setenv("BALANCER_POLICY", "mine.py:Nth")
    assert load(path, {}).policy.name == f"{here}/mine.py:Nth"


def test_specification_differs_if_its_file_does(here: Path) -> None:
    """A reload keeps a policy, with what it has learned, only if its file is the same too."""
    path = configured(here, '"mine.py:Nth"')
    first, second = (load(path, {}).policy for _ in range(2))
    assert first.is_same_as(second)
    (here / "mine.py").write_text(TEXT + "# changed\n")
    third = load(path, {}).policy
    assert third == first
    assert not third.is_same_as(first)
    assert third.library.versions == {
        f"{here}/mine.py": hashlib.sha256((here / "mine.py").read_bytes()).hexdigest()[:12]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n1 / 0", "policy: {file}:2: ZeroDivisionError: division by zero"),
        ("class Nth: ...", "policy: {file}:1: Nth has no method pick(self, facts, available, now)"),
        ("raise SystemExit(0)", "policy: {file}:1: SystemExit: 0"),
    ],
)
def test_mistake_is_one_line_of_the_configuration(here: Path, text: str, message: str) -> None:
    (here / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(configured(here, '"mine.py:Nth"'), {})
    assert str(caught.value) == f"{here / 'balancer.toml'}:1: " + message.format(file=here / "mine.py")


FAULTY = """class Faulty:
    def pick(self, facts, available, now): return available[0]
"""
"""A policy without a fault yet."""

PICKS = "return self.missing", "raised AttributeError"


def with_hook(hook: str) -> str:
    return f"return available[0]\n    def {hook}(self, *arguments): return self.missing"


@pytest.mark.parametrize(
    ("body", "fault", "config", "key"),
    [
        (*PICKS, 'policy = "mine.py:Faulty"', "policy: Faulty"),
        ("return None", "returned what is no endpoint", 'policy = "mine.py:Faulty"', "policy: Faulty"),
        (*PICKS, 'policy = { name = "random", canary = "mine.py:Faulty" }', "policy.canary: Faulty"),
        (*PICKS, 'policy = { name = "random", shadow = ["mine.py:Faulty"] }', "policy.shadow.0: Faulty"),
        (*PICKS, 'policy = { name = "region-aware", inner = "mine.py:Faulty" }', "policy: RegionAware"),
        (*PICKS, 'clusters.api.policy = "mine.py:Faulty"', "clusters.api.policy: Faulty"),
        *(
            (with_hook(hook), "raised AttributeError", 'policy = "mine.py:Faulty"', "policy: Faulty")
            for hook in ("observe", "members_changed", "tick")
        ),
    ],
)
@pytest.mark.parametrize("source", ["endpoints", "discovery"])
def test_policy_that_fails_at_its_trial_pick_is_refused(
    here: Path, body: str, fault: str, config: str, key: str, source: str
) -> None:
    """By each command that reads the configuration, in one line with file and line of the user's code, also before
    any endpoint has been discovered."""
    text = FAULTY.replace("return available[0]", body)
    (here / "mine.py").write_text(text)
    tables = {
        "endpoints": '[{ id = "a", address = "http://127.0.0.1:1" }]',
        "discovery": '{ dns = [{ name = "workers.example", port = 1 }] }',
    }
    path = here / "balancer.toml"
    path.write_text(
        f"{config}\n{source} = {tables[source]}\nclusters.api.{source} = {tables[source]}\n"
        '[[routes]]\ncluster = "api"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert f"{key} {fault}" in caught.value.problems[0]
    assert f" at {here}/mine.py:{text.count(chr(10))}" in caught.value.problems[0]


def test_policy_is_made_of_the_file_that_was_checked(here: Path) -> None:
    """A file that is damaged between the check and its use does not matter."""
    spec: Any = PolicySpec.model_validate("mine.py:Nth")
    spec.make(Random(0))
    (here / "mine.py").write_text("damaged (")
    assert spec.make(Random(0)).number == 0


def test_merged_status_shows_if_processes_differ() -> None:
    plain: Any = {"spec": {"name": "random"}, "files": [], "differs": False}
    assert merged([plain, plain]) == plain
    assert merged([plain, plain | {"spec": {"name": "maglev"}}])["differs"]
    one: Any = plain | {"files": [{"path": "/a.py", "version": "111", "loaded": "2026-01-01T00:00:01+00:00"}]}
    other = plain | {"files": [{"path": "/a.py", "version": "222", "loaded": "2026-01-01T00:00:02+00:00"}]}
    assert merged([one, one]) == one
    assert merged([one, other])["differs"]
    assert merged([one, other])["files"] == [
        {"path": "/a.py", "version": "111, 222", "loaded": "2026-01-01T00:00:02+00:00"}
    ]


# --- a running balancer


async def test_put_reads_the_file_again_and_a_mistake_keeps_the_policy(stage: Stage, here: Path) -> None:
    await stage.serve(await stage.worker(response()))
    versions = []
    for text in (TEXT, TEXT + "# changed\n"):
        (here / "mine.py").write_text(text)
        answer = await stage.ask(put_policy("mine.py:Nth"))
        assert answer.status == 200
        [file] = json.loads(answer.body)["files"]
        assert file["path"] == f"{here}/mine.py"
        versions.append(file["version"])
    assert versions[0] != versions[1]
    for text, message in (
        ("raise SystemExit", ":1: SystemExit"),
        ("class Nth(", ":1: SyntaxError"),
        ("", "no class"),
        ("class Nth:\n def pick(self, facts, available, now): 1 / 0", "mine.py:2, in a trial pick"),
    ):
        (here / "mine.py").write_text(text)
        answer = await stage.ask(put_policy("mine.py:Nth"))
        assert answer.status == 422
        assert message in json.loads(answer.body)["error"]
    policy = json.loads((await stage.ask(local(b"/-/status"))).body)["policy"]
    assert (policy["name"], policy["files"][0]["version"]) == (f"{here}/mine.py:Nth", versions[1])
    assert (await stage.ask(get())).status == 200


async def test_only_the_socket_may_name_a_new_file(stage: Stage, here: Path) -> None:
    """Over TCP the code of any file would run; what was named before can be restored there."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    bearer = b"Authorization: Bearer " + TOKEN.encode()

    async def over_tcp(name: str) -> int:
        client = await stage.client()
        return (await client.ask(put_policy(name, bearer))).status

    assert await over_tcp("mine.py:Nth") == 403
    assert await over_tcp("antigravity:Nth") == 403
    assert await over_tcp("region-round-robin") == 200
    assert (await stage.ask(put_policy("mine.py:Nth", bearer))).status == 200
    assert await over_tcp("random") == 200
    assert await over_tcp("mine.py:Nth") == 200


async def test_only_policies_are_taken_for_files_over_tcp(stage: Stage, here: Path) -> None:
    """No text of another option; and a file that is not known is refused before its code runs."""
    (here / "mine.py").write_text(f"{TEXT}\n    def __init__(self, *, order: str = ''): self.number = 0\n")
    (here / "other.py").write_text("open('loaded', 'w')\n" + TEXT)
    await stage.serve(
        await stage.worker(response()),
        policy={"name": "mine.py:Nth", "order": "emea:us"},
        admin={"token": TOKEN},
    )
    bearer = b"Authorization: Bearer " + TOKEN.encode()

    async def over_tcp(policy: dict[str, Any]) -> int:
        return (await (await stage.client()).ask(put_policy(policy, bearer))).status

    assert await over_tcp({"name": "mine.py:Nth", "order": "us:emea"}) == 200
    for name in ("canary", "inner"):
        policy = {"name": "region-round-robin", name: {"name": "other.py:Nth"}}
        assert await over_tcp(policy) == 403
    assert await over_tcp({"name": "region-round-robin", "inner": {"name": 3}}) == 422
    assert not (here / "loaded").exists()


async def test_file_of_several_pools_is_sent_once(stage: Stage, here: Path) -> None:
    """To the sibling processes that reload: pools inherit the policy, and a request has a limit."""
    pool = {"endpoints": [{"id": "a", "address": "http://127.0.0.1:1"}]}
    policy = f"{here}/mine.py:Nth"
    await stage.serve(await stage.worker(response()), policy=policy, clusters={"one": pool, "two": pool})
    assert [each.policy.name for each in stage.control_plane.named.values()] == [policy] * 2
    order = json.loads(reload_order(stage.control_plane))
    assert [file["path"] for file in order["files"]] == [f"{here}/mine.py"]


async def test_reload_keeps_the_policies_that_stay_the_same(stage: Stage, here: Path) -> None:
    """Each of live policy, canary and shadows keeps what it has learned, whatever becomes of the others; their counts,
    which compare them, begin anew."""
    (here / "other.py").write_text(TEXT)
    live, beside, file = "mine.py:Nth", "other.py:Nth", here / "other.py"
    await stage.serve(await stage.worker(response()), policy=live)
    parts = [plain(stage.cluster.router.policy)]

    async def reloaded(**others: Any) -> None:
        await stage.reload(policy={"name": live, "number": 0, **others})
        assert (await stage.ask(get())).status == 200
        parts.append(plain(stage.cluster.router.policy))

    await reloaded(canary=beside, shadow=["random", beside])
    await reloaded(canary={"name": beside, "share": 0.5}, shadow=[beside, "random"])
    assert [parts[2].index(each) for each in parts[1]] == [0, 1, 3, 2]
    assert stage.control_plane.shadows[0].seen == 1
    file.write_text(TEXT + "# changed\n")
    await reloaded(canary={"name": beside, "share": 0.5}, shadow=[beside, "random"])
    assert [new is old for new, old in zip(parts[3], parts[2], strict=True)] == [True, False, False, True]
    (here / "mine.py").write_text(TEXT + "# changed\n")
    await reloaded(canary=beside)
    assert [new is old for new, old in zip(parts[4], parts[3], strict=False)] == [False, True]
    await reloaded(number=-1)
    await reloaded(number=-1, shadow=["random"])
    assert parts[4][0] is not parts[5][0] is parts[6][0]


async def test_plug_in_that_is_gone_can_be_replaced(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a reload, which compares the new policy with the one in force and does not load that again."""
    plug_in = SimpleNamespace(value="elsewhere:First", load=lambda: RoundRobin)
    monkeypatch.setattr(registry, "_plugins", lambda: {"elsewhere": plug_in})
    await stage.serve(await stage.worker(response()), policy="elsewhere")
    plug_in.load = lambda: import_module("nothing_of_that_name")
    await stage.reload(policy="random")
    assert type(stage.cluster.router.policy).__name__ == "RandomChoice"


async def test_reload_tries_a_policy_over_the_endpoints_present(stage: Stage, here: Path) -> None:
    """Also over those that the configuration does not name. A fault changes nothing, and the instance in force is not
    the one that was tried."""
    (here / "mine.py").write_text(
        "class Known:\n picked = ()\n def pick(self, facts, available, now):\n"
        "  self.picked = [*self.picked, facts]\n"
        "  if any(each.id == 'added' for each in available): raise KeyError('added')\n"
        "  return available[0]\n"
    )
    worker = await stage.serve_worker(response())
    await stage.reload(policy="mine.py:Known")
    policy = stage.cluster.router.policy
    assert getattr(policy, "picked", None) == ()
    config = EndpointConfig(id="added", address=f"http://127.0.0.1:{worker.port}")
    stage.control_plane.registry.add(config)
    (here / "mine.py").write_text((here / "mine.py").read_text() + "# changed\n")
    with pytest.raises(ConfigError) as caught:
        await stage.reload(policy="mine.py:Known")
    [problem] = caught.value.problems
    assert problem == (
        f"policy: Known raised KeyError('added') at {here}/mine.py:5, in a trial pick before it is put in force"
    )
    assert stage.control_plane.reload_counts.problem == problem
    assert stage.cluster.router.policy is policy
