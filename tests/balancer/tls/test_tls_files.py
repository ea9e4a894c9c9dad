"""TLS keys of the configuration: valid and invalid files, `balancer check`, reload by SIGHUP."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from balancer.__main__ import main
from balancer.config.problems import ConfigError
from balancer.configuration import load
from tests.support.certificates import Shelf
from tests.support.command_line import complaint, run_in_process

ENDPOINT = '[[endpoints]]\nid = "a"\naddress = "https://127.0.0.1:9"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of valid and invalid files; `a` and `b` are certificates with their keys."""
    shelf = Shelf(tmp_path)
    for name in "ab":
        pair = shelf.pair(f"{name}.example.org")
        Path(pair["certificate"]).rename(tmp_path / f"{name}.pem")
        Path(pair["key"]).rename(tmp_path / f"{name}.key")
    nameless = Path(shelf.pair("127.0.0.1")["certificate"])
    nameless.rename(tmp_path / "nameless.pem")
    (tmp_path / "both.pem").write_bytes((tmp_path / "a.pem").read_bytes() + (tmp_path / "a.key").read_bytes())
    (tmp_path / "empty.pem").write_bytes(b"")
    (tmp_path / "binary.pem").write_bytes(bytes(range(256)))
    (tmp_path / "cut.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (tmp_path / "locked.key").write_bytes(encrypted_key(tmp_path / "a.key"))
    return tmp_path


def encrypted_key(path: Path) -> bytes:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def tls(certificate: str = "a.pem", key: str = "a.key", more: str = "") -> str:
    return f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n{more}\n'


GOOD: dict[str, str] = {
    "one": tls(),
    "one file": '[tls]\ncertificate = "both.pem"\n',
    "several": (
        '[[tls.certificates]]\ncertificate = "a.pem"\nkey = "a.key"\n'
        '[[tls.certificates]]\ncertificate = "b.pem"\nkey = "b.key"\n'
    ),
    "one and others": tls(more='[[tls.certificates]]\ncertificate = "b.pem"\nkey = "b.key"'),
    "clients": tls(more='client_ca = "ca.pem"\nclient_certificate = "optional"'),
    "workers": '[upstream_tls]\nca = "ca.pem"\ncertificate = "a.pem"\nkey = "a.key"\nserver_name = "w"\n',
    "no verification": "[upstream_tls]\nverify = false\n",
}

BAD: dict[str, tuple[str, list[str]]] = {
    "no certificate": ("[tls]\n", ["tls", "certificate", "required"]),
    "missing": (tls("none.pem"), ["tls.certificate: ", "none.pem", "No such file"]),
    "missing key": (tls(key="none.key"), ["tls.key: ", "none.key", "No such file"]),
    "a folder": (tls("."), ["tls.certificate: ", "directory"]),
    "key of another certificate": (tls(key="b.key"), ["tls.key: ", "b.key", "not the key of", "a.pem"]),
    "locked key": (tls(key="locked.key"), ["tls.key: ", "locked.key", "password"]),
    "empty": (tls("empty.pem"), ["tls.certificate: ", "empty.pem", "PEM"]),
    "binary": (tls("binary.pem"), ["tls.certificate: ", "binary.pem", "PEM"]),
    "cut": (tls("cut.pem"), ["tls.certificate: ", "cut.pem", "PEM"]),
    "a key instead": (tls("a.key"), ["tls.certificate: ", "a.key", "PEM"]),
    "a certificate instead": (tls(key="b.pem"), ["tls.key: ", "b.pem", "PEM"]),
    "no key in the same file": ('[tls]\ncertificate = "a.pem"\n', ["tls.key: ", "a.pem", "PEM"]),
    "minimum": (tls(more='min_version = "1.1"'), ["tls.min_version: ", "1.1", "1.2", "1.3"]),
    "no authority for fields": (
        tls(more='client_certificate_fields = "leaf"'),
        ["tls.client_certificate_fields: needs client_ca"],
    ),
    "no authority for clients": (tls(more='client_certificate = "required"'), ["tls", "client_ca"]),
    "client mode": (
        tls(more='client_ca = "ca.pem"\nclient_certificate = "maybe"'),
        ["tls.client_certificate: ", "maybe"],
    ),
    "authority missing": (tls(more='client_ca = "none.pem"'), ["tls.client_ca: ", "none.pem"]),
    "authority": (tls(more='client_ca = "empty.pem"'), ["tls.client_ca: ", "empty.pem", "PEM"]),
    "unknown": (tls(more="versions = 1"), ["tls.versions: ", "known"]),
    "second": (
        tls(more='[[tls.certificates]]\ncertificate = "b.pem"\nkey = "a.key"'),
        ["tls.certificates.0.key: ", "not the key"],
    ),
    "nameless": (
        tls(more='[[tls.certificates]]\ncertificate = "nameless.pem"\nkey = "a.key"'),
        ["tls.certificates.0.certificate: ", "no DNS name"],
    ),
    "worker's authority": ('[upstream_tls]\nca = "none.pem"\n', ["upstream_tls.ca: ", "none.pem"]),
    "client certificate": (
        '[upstream_tls]\ncertificate = "cut.pem"\n',
        ["upstream_tls.certificate: ", "cut.pem"],
    ),
    "key alone": ('[upstream_tls]\nkey = "a.key"\n', ["upstream_tls", "key: "]),
    "authority without verification": (
        '[upstream_tls]\nca = "ca.pem"\nverify = false\n',
        ["upstream_tls", "ca: "],
    ),
    "proxies": ('proxy_protocol = ["10.0.0.0/99"]\n', ["proxy_protocol.0"]),
}


@pytest.mark.parametrize(
    ("table", "key"), [("tls", "tls"), ("listeners.b", "listeners.b.tls"), ("", "tls.certificates.0")]
)
def test_check_and_serve_name_an_expired_certificate(tmp_path: Path, table: str, key: str) -> None:
    """With the file and the time; a valid one beside it is not named."""
    pairs = [Shelf(tmp_path).pair("a.org", is_expired=is_expired) for is_expired in (True, False)]
    expired, valid = ("{{ certificate = '{certificate}', key = '{key}' }}".format(**pair) for pair in pairs)
    texts = {
        "tls": f"tls = {expired}\n",
        "listeners.b": f"tls = {valid}\n[listeners.b]\nlisten = ':1'\ntls = {expired}\n",
        "": f"tls.certificates = [{expired}]\ntls.certificate = '{pairs[1]['certificate']}'\n"
        f"tls.key = '{pairs[1]['key']}'\n",
    }
    path = write_config(tmp_path, f"listen = '192.0.2.1:1'\n{texts[table]}")
    line = f"{key}.certificate: {pairs[0]['certificate']} has expired, at 20"
    warnings = [
        line
        for line in run_in_process(main, "balancer", "check", str(path)).stdout.splitlines()
        if "expired" in line
    ]
    assert [each.startswith(f"warning: {line}") for each in warnings] == [True]
    said, refused = run_in_process(main, "balancer", "serve", "--config", str(path)).stderr.splitlines()
    assert said == f"balancer: {warnings[0].removeprefix('warning: ')}"
    assert "cannot use 192.0.2.1:1" in refused


def write_config(folder: Path, text: str) -> Path:
    path = folder / "balancer.toml"
    path.write_text(text + ENDPOINT)
    return path


@pytest.mark.parametrize("case", GOOD)
def test_valid_tls_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Relative paths start at the working directory."""
    monkeypatch.chdir(folder)
    settings = load(write_config(folder, GOOD[case]), {})
    assert (settings.tls is not None) == ("[tls" in GOOD[case])


@pytest.mark.parametrize("case", BAD)
def test_invalid_tls_configuration_names_the_field(
    folder: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """One line with the line of the file and the field."""
    monkeypatch.chdir(folder)
    text, words = BAD[case]
    with pytest.raises(ConfigError) as caught:
        load(write_config(folder, text), {})
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(folder))}/balancer\.toml:\d+: {re.escape(words[0])}", message), message
    assert "\n" not in message
    assert not [word for word in words if word not in message], message


def test_bad_tls_table_of_an_endpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    path = folder / "balancer.toml"
    path.write_text(ENDPOINT + 'tls = { ca = "none.pem" }\n')
    with pytest.raises(ConfigError, match=rf"^.*:4: endpoints\.0\.tls\.ca: cannot read {folder}/none\.pem"):
        load(path, {})


def test_check_reports_an_encrypted_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, one line, no password prompt."""
    monkeypatch.chdir(folder)
    path = write_config(folder, tls(key="locked.key"))
    assert f"tls.key: {folder}/locked.key" in complaint(main, "balancer", "check", str(path))
