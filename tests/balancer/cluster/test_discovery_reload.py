"""Discovery over reloads: new sources are looked up first, and all lists are applied in one step."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from balancer.__main__ import cli
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.config.schema.endpoint import EndpointConfig
from balancer.process.server import Server
from policies.facts import AdminState
from tests.support.admin_requests import command, status
from tests.support.certificates import Shelf
from tests.support.command_line import run_balancer
from tests.support.config_files import table
from tests.support.dns_discovery import NAME, dns, known, pass_time, serve_names
from tests.support.name_server import NameServer
from tests.support.stage import Stage, endpoint, pool_of, serve_api
from tests.support.wire import get, response
from tests.support.wireless import Wireless


async def test_new_name_is_looked_up_before_anything_changes(stage: Stage, names: NameServer) -> None:
    """The old endpoints serve until its first answer, also while that takes long."""
    worker, fresh = await stage.worker(response(b"old")), await stage.worker(response(b"new"))
    await stage.serve(worker)
    names.address(NAME, "127.0.0.1")
    names.is_silent = True
    found = {"dns": [dns(names, port=fresh.port, timeout=20)]}
    reload = asyncio.ensure_future(stage.reload(endpoints=[], discovery=found))
    await stage.eventually(lambda: names.asked)
    assert (await stage.ask(get())).body == b"old"
    assert known(stage) == ["w0"]
    names.is_silent = False
    await reload
    assert known(stage) == [f"127.0.0.1-{fresh.port}"]
    assert (await stage.ask(get())).body == b"new"


async def test_file_that_changes_while_a_reload_looks_names_up(
    stage: Stage, names: NameServer, tmp_path: Path
) -> None:
    """What left the file in the meantime does not come back, and later versions are found."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1) + table(2, "b"))
    file = {"file": {"path": str(path)}}
    await stage.serve(discovery=file)
    names.address(NAME, "127.0.0.1")
    names.is_silent = True
    found = {**file, "dns": [dns(names, port=3, timeout=20)]}
    reload = asyncio.ensure_future(stage.reload(discovery=found))
    await stage.eventually(lambda: names.asked)

    def poll_twice() -> None:
        for _ in range(2):
            stage.clock.at += 1
            stage.control_plane.discovery.tick(stage.clock.at)

    path.write_text(table(1, more="weight = 2\n"))
    poll_twice()
    assert known(stage) == ["a"]
    names.is_silent = False
    await reload
    assert known(stage) == ["a", "127.0.0.1-3"]
    path.write_text(table(1, "c"))
    poll_twice()
    assert known(stage) == ["c", "127.0.0.1-3"]


@pytest.mark.parametrize("before", ["configuration", "another name"])
async def test_name_without_an_answer_holds_what_it_replaces(
    stage: Stage, names: NameServer, before: str
) -> None:
    """With one line, until its first answer; a further reload changes nothing of that."""
    worker = await stage.worker(response(b"still"))
    names.address(NAME, "127.0.0.1", ttl=100)
    if before == "configuration":
        await stage.serve(worker)
    else:
        await serve_names(stage, names, port=worker.port)
    old, lines = known(stage), list[str]()
    state = stage.state(old[0])
    stage.control_plane.discovery.say = lines.append
    found = {"dns": [dns(names, name="none.test", port=worker.port)]}
    for _ in range(2):
        await stage.reload(endpoints=[], discovery=found)
        assert known(stage) == old
        assert stage.state(old[0]) is state
        assert (await stage.ask(get())).body == b"still"
        assert lines == ["discovery.dns: none.test: has no addresses; the endpoints that are known stay"]
    code, answer = await command(stage, "POST", "/-/reload")
    assert (code, answer["unanswered"]) == (200, [f"dns none.test:{worker.port}"])
    names.address("none.test", "127.0.0.2")
    await pass_time(stage, 2)
    assert known(stage) == [f"127.0.0.2-{worker.port}"]


async def test_old_name_without_an_answer_holds_nothing(stage: Stage, names: NameServer) -> None:
    """Only a source that is new in a reload holds what this removes."""
    worker, other = await stage.worker(response(b"gone")), await stage.worker(response(b"stays"))
    found = {"dns": [dns(names, name="none.test", port=80)]}
    await stage.serve(worker, other, discovery=found)
    await stage.reload(endpoints=[endpoint(other, "w1")], discovery=found)
    assert known(stage) == ["w1"]
    assert [(await stage.ask(get())).body for _ in range(2)] == [b"stays"] * 2


async def test_name_of_a_cluster_without_an_answer(stage: Stage, names: NameServer) -> None:
    api = pool_of(await stage.worker(response(b"api")))
    await serve_api(stage, api)
    await stage.reload(clusters={"api": {"discovery": {"dns": [dns(names, port=80)]}}})
    assert (await stage.ask(get(b"/api"))).body == b"api"
    names.address(NAME, "127.0.0.2")
    discovery = stage.control_plane.named["api"].discovery
    stage.clock.at += 2
    discovery.tick(stage.clock.at)
    await discovery.close([*discovery._sources.remote])
    assert [*stage.control_plane.named["api"].registry.members] == ["127.0.0.2-80"]


@pytest.mark.parametrize("after", ["configuration", "another file"])
async def test_endpoint_that_changes_its_source_keeps_its_state(
    stage: Stage, tmp_path: Path, after: str
) -> None:
    """Its admin state, statistics and connections."""
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    workers = [await stage.worker(response(b"a")), await stage.worker(response(b"b"))]
    text = "".join(table(worker.port, name) for worker, name in zip(workers, "ab", strict=True))
    one.write_text(text)
    two.write_text(text)
    await stage.serve(discovery={"file": {"path": str(one)}})
    await stage.ask(get())
    await stage.ask(get())
    state = stage.state("a")
    assert stage.pool("a").idle == 1
    await command(stage, "PATCH", "/-/endpoints/b", {"state": "maintenance"})
    listed = [endpoint(worker, name) for worker, name in zip(workers, "ab", strict=True)]
    if after == "configuration":
        await stage.reload(discovery={}, endpoints=listed)
    else:
        await stage.reload(discovery={"file": {"path": str(two)}})
    assert stage.state("a") is state
    assert (stage.outcomes("a"), stage.pool("a").idle) == ({"ok": 1}, 1)
    assert stage.state("b").admin_state is AdminState.MAINTENANCE
    assert [(await stage.ask(get())).body for _ in range(3)] == [b"a"] * 3


@pytest.mark.parametrize("way", ["poll", "reload"])
async def test_certificate_authority_that_is_missing_at_first(stage: Stage, tmp_path: Path, way: str) -> None:
    """An error for `check` and at the start; later the endpoints are taken as soon as it is there."""
    path, config = tmp_path / "endpoints.toml", tmp_path / "balancer.toml"
    ca = tmp_path / "missing.pem"
    secure = table(2, "s").replace("http:", "https:") + f'tls = {{ ca = "{ca}" }}\n'
    path.write_text(secure)
    config.write_text(f'listen = "127.0.0.1:0"\n[discovery.file]\npath = "{path}"\n')
    problem = f"discovery.file.endpoints.0.tls.ca: cannot read {ca}: No such file or directory"
    ran = CliRunner().invoke(cli, ["check", str(config)])
    assert isinstance(ran.exception, ConfigError)
    assert str(ran.exception) == f"{config}:2: {problem}"
    keys: dict[str, Any] = {"discovery": {"file": {"path": str(path)}}}
    with pytest.raises(ConfigError) as caught:
        Server(Settings(listen="127.0.0.1:0", **keys))
    assert str(caught.value) == problem
    path.write_text(table(1))
    await stage.serve(**keys)
    path.write_text(table(3) + secure)
    discovery, lines = stage.control_plane.discovery, list[str]()
    discovery.say = lines.append
    for _ in range(4):
        stage.clock.at += 1
        discovery.tick(stage.clock.at)
    assert (known(stage), len(lines)) == (["a"], 1)
    ca.write_bytes(Shelf(tmp_path).ca.read_bytes())
    if way == "poll":
        stage.clock.at += 1
        discovery.tick(stage.clock.at)
    else:
        await stage.reload()
    assert known(stage) == ["a", "s"]
    assert [each["problem"] for each in (await status(stage))["discovery"]] == [None]


async def test_weight_set_by_command_lasts_until_a_reload(stage: Stage, tmp_path: Path) -> None:
    """Also that of a discovered endpoint; one that was added by command keeps it."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1, more="weight = 2\n"))
    await stage.serve(discovery={"file": {"path": str(path)}})
    await command(stage, "POST", "/-/endpoints", endpoint(2, "added"))
    for id_ in ("a", "added"):
        await command(stage, "PATCH", f"/-/endpoints/{id_}", {"weight": 3})
    path.write_text(table(1, more="weight = 7\n"))
    await stage.reload()
    assert {state.id: state.weight for state in stage.cluster.router.states} == {"a": 7, "added": 3}


async def test_removed_endpoint_that_a_file_names_too(stage: Stage, tmp_path: Path) -> None:
    """The command says that it goes on, and from where."""
    path = tmp_path / "endpoints.toml"
    path.write_text(table(1, "w0"))
    await stage.serve(await stage.worker(response()), discovery={"file": {"path": str(path)}})
    ran = await run_balancer("endpoints", "--url", f"http://{stage.running.address}", "remove", "w0")
    removed, goes_on = ran.output.splitlines()
    assert removed.split() == ["w0", "removed", "in", "flight", "0"]
    assert goes_on.split() == ["w0", "goes", "on", "from", "file", str(path)]


async def test_removed_endpoint_goes_on_from_the_first_source(stage: Stage) -> None:
    """In the order of the configuration, not of the answers."""
    await stage.serve(await stage.worker(response()))
    control_plane = stage.control_plane
    control_plane.registry.apply(control_plane.config, {"dns first": None, "dns second": None})
    control_plane.registry.replace("dns second", [one("w0", 2)])
    control_plane.registry.replace("dns first", [one("w0", 1)])
    control_plane.registry.remove("w0")
    member = control_plane.registry.member("w0")
    assert (member.source, member.config.address) == ("dns first", "http://192.0.2.1:80")


def one(id_: str, host: int) -> EndpointConfig:
    return EndpointConfig(id=id_, address=f"http://192.0.2.{host}:80")


def test_changes_wait_for_endpoints_that_siblings_know() -> None:
    """The admin states apply when discovery finds the endpoint; later processes get those that still wait."""
    control_plane = Wireless().control_plane
    registry = control_plane.registry
    registry.expect("a", AdminState.DRAIN)
    registry.expect("a", weight=3.0)
    assert registry.orders()[2:] == ({"a": 3.0}, {"a": "drain"})
    registry.replace("dns", [one("a", 1), one("b", 2)])
    state = control_plane.cluster.router.find("a")
    assert (state.admin_state, state.weight) == (AdminState.DRAIN, 3.0)
    registry.replace("dns", [one("b", 2)])
    registry.replace("dns", [one("a", 1)])
    state = control_plane.cluster.router.find("a")
    assert (state.admin_state, state.weight) == (AdminState.READY, 1.0)


async def test_change_that_waits_for_an_endpoint_expires(stage: Stage) -> None:
    """After ten minutes and the longest `max_ttl`: it was removed elsewhere before it was found here."""
    await stage.serve(await stage.worker(response()))
    registry = stage.control_plane.registry
    for id_, wait in (("a", 599), ("b", 2)):
        registry.expect(id_, AdminState.DRAIN, 3.0)
        stage.clock.at += wait
    registry.expect("c", AdminState.DRAIN)
    assert registry.orders()[2:] == ({"b": 3.0}, {"b": "drain", "c": "drain"})
    registry.replace("dns", [one("a", 1), one("b", 2)])
    states = {state.id: state.admin_state for state in stage.cluster.router.states}
    assert states == {"w0": AdminState.READY, "a": AdminState.READY, "b": AdminState.DRAIN}
    assert [state.weight for state in stage.cluster.router.states] == [1.0, 1.0, 3.0]


def test_weight_that_waits_ends_with_a_reload() -> None:
    """As those of discovered endpoints do, also one that a sibling has told. The admin state waits on."""
    control_plane = Wireless().control_plane
    registry = control_plane.registry
    registry.replace_overrides([], [], {"a": 3.0})
    registry.expect("b", AdminState.DRAIN, 2.0)
    assert registry.orders()[2] == {"a": 3.0, "b": 2.0}
    registry.apply(control_plane.config, {})
    assert registry.orders()[2:] == ({}, {"b": "drain"})


def test_number_of_waiting_changes_is_bounded() -> None:
    registry = Wireless().control_plane.registry
    for at in range(2000):
        registry.expect(f"e{at}", AdminState.DRAIN, 3.0)
    for changes in registry.orders()[2:]:
        assert (len(changes), "e0" in changes, "e1999" in changes) == (1000, False, True)


async def test_name_without_an_answer_holds_what_the_old_program_had(stage: Stage, names: NameServer) -> None:
    """Of the sources that it replaces, not of one that is configured still and has an answer."""
    names.address(NAME, "127.0.0.3")
    both = [dns(names, port=80), dns(names, name="none.test", port=80)]
    await stage.serve(discovery={"dns": both})
    old = {f"dns {NAME}:80": [one("a", 1)], "dns old.test:80": [one("b", 2)]}
    found = {source: [each.model_dump(mode="json") for each in each_of] for source, each_of in old.items()}
    stage.control_plane.hold({"": found})
    assert known(stage) == ["127.0.0.3-80", "b"]
    names.address("none.test", "127.0.0.4")
    await pass_time(stage, 2)
    assert known(stage) == ["127.0.0.3-80", "127.0.0.4-80"]


def test_source_without_an_answer_holds_what_is_known_elsewhere() -> None:
    """Until its own first answer, also if that is empty."""
    registry = Wireless().control_plane.registry
    registry.hold("dns", [one("a", 1)])
    assert [*registry.members] == ["w0", "a"]
    registry.replace("dns", [])
    registry.hold("dns", [one("a", 1)])
    assert [*registry.members] == ["w0"]


def test_what_another_process_knows_replaces_what_a_reload_removes() -> None:
    """A new source without an answer has the list of a sibling, also an empty one; not once it has an answer."""
    control_plane = Wireless().control_plane
    registry = control_plane.registry
    settings = control_plane.config.settings.model_copy(update={"endpoints": ()})
    registry.apply(replace(control_plane.config, settings=settings), {"file": None})
    assert [*registry.members] == ["w0"]
    registry.hold("file", [one("a", 1)])
    assert [*registry.members] == ["a"]
    registry.hold("file", [])
    assert not registry.members
    registry.replace("file", [one("b", 2)])
    registry.hold("file", [one("a", 1)])
    assert [*registry.members] == ["b"]
