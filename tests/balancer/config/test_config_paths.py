"""Paths of files in a configuration file are relative to it, for every key that names a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from balancer.cluster.discovery.file_source import FileSource
from balancer.config.keys import annotation_at, is_file_path, is_list, with_located_files
from balancer.config.loading import Settings
from balancer.config.schema.discovery import FileDiscovery
from balancer.config.schema.sidecar import read_sidecar
from balancer.configuration import load
from tests.support.documentation import KEYS
from tests.support.tables import row_of

OF_URLS = {
    *("routes.path", "routes.prefix", "routes.replace_prefix", "routes.auth.path", "routes.redirect.path"),
    *("routes.redirect.replace_prefix", "pool.heartbeat", "health_checks.path", "load_probes.path"),
}
"""Keys whose unit is a path, of a URL."""

ABSOLUTE = {"listen", "endpoints.address", "admin.socket"}
"""Keys that may be the path of a Unix socket, which is absolute."""

FILES = [key for key, field in KEYS.items() if is_file_path(field.annotation)]


def test_every_key_that_is_a_path_is_known_as_a_file() -> None:
    units = {key: row_of(key, field).split("|")[2] for key, field in KEYS.items()}
    paths = {key for key, unit in units.items() if re.search(r'(?<!")\b(path|file)\b', unit)}
    assert paths - OF_URLS - ABSOLUTE == {*FILES}
    assert len(FILES) > 15


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize(
    ("given", "located"), [("conf.d/a", "/etc/steelyard/conf.d/a"), ("/a", "/a"), ("", "")]
)
def test_path_is_relative_to_the_file(key: str, given: str, located: str) -> None:
    """Also in a named cluster."""

    def document(value: str) -> Any:
        *tables, name = key.split(".")
        inner: Any = {name: value}
        for length in range(len(tables), 0, -1):
            inner = [inner] if is_list(annotation_at(Settings, (*tables[:length],))) else inner
            inner = {tables[length - 1]: inner}
        return {**inner, "clusters": {"api": inner}}

    found = with_located_files(document(given), Settings, "/etc/steelyard")
    expected = document(located)
    is_of_clusters = key.split(".")[0] in ("endpoints", "discovery", "upstream_tls")
    assert found == expected | {"clusters": (expected if is_of_clusters else document(given))["clusters"]}


def test_paths_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the environment to the working directory."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "sorry.html").touch()
    path = folder / "balancer.toml"
    path.write_text(
        'log.path = "a.log"\ndiscovery.file.path = "found.json"\nerrors.4xx.file = "sorry.html"\n'
    )
    settings = load(path, {})
    assert settings.log.path == str(folder / "a.log")
    assert settings.discovery.file == FileDiscovery(path=folder / "found.json")
    assert settings.errors["4xx"].file == folder / "sorry.html"
    monkeypatch.setenv("BALANCER_LOG__PATH", "b.log")
    assert load(path, {}).log.path == "b.log"
    found = {"id": "a", "address": "https://a:1", "tls": {"ca": "ca.pem"}}
    (folder / "found.json").write_text(json.dumps([found]))
    [endpoint] = FileSource(FileDiscovery(path=folder / "found.json")).first()
    assert endpoint.tls is not None
    assert endpoint.tls.ca == folder / "ca.pem"
    path.write_text('log.path = "a.log"\n[[origins]]\nname = "a"\nurl = "https://a.example"\n')
    assert read_sidecar(path, {}).log.path == str(folder / "a.log")
