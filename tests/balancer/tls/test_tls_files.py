"""TLS keys of the configuration: valid and invalid files, `balancer check`, reload by SIGHUP."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from balancer.__main__ import main
from balancer.cluster.runtime_config import runtime_config_of
from balancer.configuration import load
from tests.support.certificates import Shelf
from tests.support.command_line import complaint, run_in_process
from tests.support.config_files import problems, refusals

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
    Path(shelf.pair("r", is_rsa=True)["key"]).rename(tmp_path / "rsa.key")
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

BAD = """
[tls] -> balancer.toml:1: tls.certificate: is required
[tls]; certificate = "none.pem"; key = "a.key" ->
    balancer.toml:2: tls.certificate: cannot read none.pem: No such file or directory
[tls]; certificate = "a.pem"; key = "none.key" ->
    balancer.toml:3: tls.key: cannot read none.key: No such file or directory
[tls]; certificate = "."; key = "a.key" -> balancer.toml:2: tls.certificate: cannot read FOLDER: Is a directory
[tls]; certificate = "a.pem"; key = "b.key" -> balancer.toml:3: tls.key: b.key is not the key of a.pem
[tls]; certificate = "a.pem"; key = "locked.key" ->
    balancer.toml:3: tls.key: locked.key is protected by a password; give one that is not
[tls]; certificate = "empty.pem"; key = "a.key" -> balancer.toml:2: tls.certificate: empty.pem NO_CERTIFICATE
[tls]; certificate = "binary.pem"; key = "a.key" -> balancer.toml:2: tls.certificate: binary.pem NO_CERTIFICATE
[tls]; certificate = "cut.pem"; key = "a.key" -> balancer.toml:2: tls.certificate: cut.pem NO_CERTIFICATE
[tls]; certificate = "a.key"; key = "a.key" -> balancer.toml:2: tls.certificate: a.key NO_CERTIFICATE
[tls]; certificate = "a.pem"; key = "b.pem" -> balancer.toml:3: tls.key: b.pem holds no private key in PEM
[tls]; certificate = "a.pem"; key = "rsa.key" -> balancer.toml:3: tls.key: rsa.key is not the key of a.pem
[tls]; certificate = "a.pem" -> balancer.toml:1: tls.key: a.pem holds no private key in PEM
PAIR; min_version = "1.1" -> balancer.toml:4: tls.min_version: input should be '1.2' or '1.3', got '1.1'
PAIR; client_certificate_fields = "leaf" -> balancer.toml:4: tls.client_certificate_fields: needs client_ca
PAIR; client_certificate = "required" -> balancer.toml:4: tls.client_certificate: needs client_ca
PAIR; client_ca = "ca.pem"; client_certificate = "maybe" ->
    balancer.toml:5: tls.client_certificate: input should be 'optional' or 'required', got 'maybe'
PAIR; client_ca = "none.pem" -> balancer.toml:4: tls.client_ca: cannot read none.pem: No such file or directory
PAIR; client_ca = "empty.pem" -> balancer.toml:4: tls.client_ca: empty.pem NO_CERTIFICATE
PAIR; versions = 1 -> balancer.toml:4: tls.versions: is not a known key; did you mean 'min_version'?
PAIR; [[tls.certificates]]; certificate = "b.pem"; key = "a.key" ->
    balancer.toml:6: tls.certificates.0.key: a.key is not the key of b.pem
PAIR; [[tls.certificates]]; certificate = "nameless.pem"; key = "a.key" ->
    balancer.toml:5: tls.certificates.0.certificate: nameless.pem has no DNS name to be chosen by (SNI)
[upstream_tls]; ca = "none.pem" ->
    balancer.toml:2: upstream_tls.ca: cannot read none.pem: No such file or directory
[upstream_tls]; certificate = "cut.pem" -> balancer.toml:2: upstream_tls.certificate: cut.pem NO_CERTIFICATE
[upstream_tls]; key = "a.key" -> balancer.toml:2: upstream_tls.key: needs certificate
[upstream_tls]; ca = "ca.pem"; verify = false -> balancer.toml:2: upstream_tls.ca: must not be given with verify = false
proxy_protocol = ["10.0.0.0/99"] ->
    balancer.toml:1: proxy_protocol.0: value is not a valid IPv4 or IPv6 network, got '10.0.0.0/99'
ENDPOINT_WITH tls = { ca = "none.pem" } ->
    balancer.toml:4: endpoints.0.tls.ca: cannot read none.pem: No such file or directory
"""
MEANT = {
    "NO_CERTIFICATE": "holds no certificate in PEM",
    "PAIR": tls().strip(),
    "ENDPOINT_WITH ": ENDPOINT.replace('"a"', '"b"'),
}
"""Words that stand for long ones in the table."""


@pytest.mark.parametrize(
    ("table", "key"), [("tls", "tls"), ("listeners.b", "listeners.b.tls"), ("", "tls.certificates.0")]
)
def test_check_and_serve_name_an_expired_certificate(tmp_path: Path, table: str, key: str) -> None:
    """With the file and the time; a valid one beside it is not named."""
    pairs = [Shelf(tmp_path).pair(f"{number}.org", is_expired=number == 0) for number in range(2)]
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


def test_check_names_a_certificate_that_is_never_used(tmp_path: Path) -> None:
    """Those before it have its names, and keys of its type; one with a key of another type is used."""
    shelf = Shelf(tmp_path)
    pairs = [shelf.pair("a.org", "b.org"), shelf.pair("b.org", is_rsa=True), shelf.pair("a.org")]
    lines = ["{{ certificate = '{certificate}', key = '{key}' }}".format(**pair) for pair in pairs]
    path = write_config(tmp_path, f"tls.certificates = [{', '.join(lines)}]\n")
    warnings = [
        line
        for line in run_in_process(main, "balancer", "check", str(path)).stdout.splitlines()
        if "never" in line
    ]
    assert warnings == [
        f"warning: tls.certificates.2.certificate: {pairs[2]['certificate']} is never used: "
        "others before it have its names"
    ]


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


@pytest.mark.parametrize(("text", "message"), refusals(BAD))
def test_invalid_tls_configuration_names_the_field(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    for word, meaning in MEANT.items():
        text, message = text.replace(word, meaning), message.replace(word, meaning)
    path = write_config(folder, f"{text}\n")
    assert problems(path) == [message.replace("FOLDER", str(folder))]


def test_certificates_are_loaded_once_for_all_clusters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    pools = "".join(f"[clusters.c{at}]\n{ENDPOINT.replace('[[', f'[[clusters.c{at}.')}" for at in range(3))
    Path("balancer.toml").write_text(f"{GOOD['several']}{ENDPOINT}{pools}")
    settings, loaded = load(Path("balancer.toml"), {}), list[Path]()
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda _, *pair: loaded.append(pair[0]))
    config = runtime_config_of(settings)
    assert (len(config.named), [path.name for path in loaded]) == (3, ["a.pem", "b.pem"])


def test_check_reports_an_encrypted_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, one line, no password prompt."""
    monkeypatch.chdir(folder)
    path = write_config(folder, tls(key="locked.key"))
    assert f"tls.key: {folder}/locked.key" in complaint(main, "balancer", "check", str(path))
