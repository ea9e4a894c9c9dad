"""Endpoints of EndpointSlices: conditions, ports, regions; access to the API server; configuration."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from balancer.__main__ import cli
from balancer.cluster.discovery.dns_source import MAX_ENDPOINTS
from balancer.cluster.discovery.kubernetes.api import access_of
from balancer.cluster.discovery.kubernetes.endpoints import (
    EndpointSlice,
    PodAddress,
    Unusable,
    endpoints_of,
)
from balancer.config.problems import ConfigError
from balancer.config.schema.discovery import KubernetesDiscovery
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from tests.support.certificates import Shelf
from tests.support.kubernetes_api import Document, endpoint_slice, leaving, pod

NO_TLS = UpstreamTlsConfig()


def found(*slices: Document, **keys: Any) -> tuple[dict[str, str], str | None]:
    """Regions by id of the endpoints, and the notice."""
    config = KubernetesDiscovery(service="workers", **keys)
    parsed = [EndpointSlice.model_validate(each) for each in slices]
    endpoints, notice = endpoints_of(parsed, config, NO_TLS, {})
    return {endpoint.id: endpoint.region for endpoint in endpoints}, notice


def ids(*slices: Document, **keys: Any) -> list[str]:
    return list(found(*slices, **keys)[0])


def refused(*slices: Document, **keys: Any) -> str:
    with pytest.raises(Unusable) as caught:
        found(*slices, **keys)
    return str(caught.value)


# --- conditions


@pytest.mark.parametrize(
    ("ready", "serving", "terminating", "is_used"),
    [
        (True, True, False, True),
        (None, None, None, True),  # unknown counts as ready
        (None, False, None, True),
        (True, False, False, True),  # publishNotReadyAddresses
        (False, False, False, False),
        (False, True, False, False),
        (False, True, True, False),
        (False, False, True, False),
        (True, True, True, False),  # publishNotReadyAddresses, and it terminates
        (None, None, True, False),
    ],
)
def test_conditions(
    ready: bool | None, serving: bool | None, terminating: bool | None, is_used: bool
) -> None:
    """Beside a pod that is ready."""
    other = pod("10.0.0.2", ready=ready, serving=serving, terminating=terminating)
    assert ids(endpoint_slice("a", pod("10.0.0.1"), other)) == (
        ["10.0.0.1-9000", "10.0.0.2-9000"] if is_used else ["10.0.0.1-9000"]
    )


def test_last_resort() -> None:
    """Without a ready pod those that serve while they terminate, as kube-proxy does it (KEP-1669)."""
    broken = pod("10.0.0.2", ready=False, serving=False, terminating=True)
    not_ready = pod("10.0.0.3", ready=False, serving=False)
    assert ids(endpoint_slice("a", leaving("10.0.0.1"), broken, not_ready)) == ["10.0.0.1-9000"]


@pytest.mark.parametrize("slices", [(), (endpoint_slice("a"),), (endpoint_slice("a", ports=[]),)])
def test_no_pod(slices: tuple[Document, ...]) -> None:
    """No slice, or one whose endpoints and ports are null: an error unless it is allowed."""
    assert refused(*slices).startswith("no pod is ready; ")
    assert ids(*slices, allow_empty=True) == []


# --- several slices


def test_slices_are_merged() -> None:
    """In order of their names, each address once; one that is ready anywhere is ready."""
    first = endpoint_slice("a", pod("10.0.0.1"), pod("10.0.0.2", ready=False))
    second = endpoint_slice("b", pod("10.0.0.2"), pod("10.0.0.1"), pod("10.0.0.3"))
    assert ids(second, first) == ["10.0.0.1-9000", "10.0.0.2-9000", "10.0.0.3-9000"]


def test_unchanged_pods_are_not_made_anew() -> None:
    """To make an endpoint takes long, and a Service may have thousands."""
    config = KubernetesDiscovery(service="workers")
    known: dict[PodAddress, EndpointConfig] = {}
    seen = []
    for pods in (
        [pod("10.0.0.1", zone="a"), pod("10.0.0.2", zone="a"), pod("10.0.0.3", zone="a")],
        [pod("10.0.0.2", zone="a"), pod("10.0.0.3", zone="b")],
    ):
        slices = [EndpointSlice.model_validate(endpoint_slice("s", *pods))]
        seen.append(endpoints_of(slices, config, NO_TLS, known)[0])
    (_, second, _), (still, moved) = seen
    assert still is second
    assert (moved.region, list(known.values())) == ("b", [still, moved])


def test_pod_with_addresses_of_both_families() -> None:
    """One endpoint, at its IPv4 address. A pod without one has its IPv6 address."""
    four = endpoint_slice("a", pod("10.0.0.1", uid="one"))
    six = endpoint_slice("b", pod("fd00::1", uid="one"), pod("fd00::2", uid="two"), family="IPv6")
    assert ids(six, four) == ["10.0.0.1-9000", "ip6-fd00--2-9000"]


def test_further_addresses_are_ignored() -> None:
    """They are interchangeable (API reference of EndpointSlice)."""
    assert ids(endpoint_slice("a", pod("10.0.0.1", "10.0.0.9"))) == ["10.0.0.1-9000"]


def test_host_names_are_left_out() -> None:
    named = endpoint_slice("b", pod("a.test"), family="FQDN")
    _, notice = found(endpoint_slice("a", pod("10.0.0.1")), named)
    assert notice == "slice b is left out: its address type is FQDN, must be IPv4 or IPv6"
    assert refused(named).startswith("no pod is ready")


def test_too_many_pods() -> None:
    pods = [pod(f"10.0.{at // 250}.{at % 250}") for at in range(MAX_ENDPOINTS + 1)]
    assert refused(endpoint_slice("a", *pods)) == "has more than 5,000 pods"


# --- ports

HTTP = {"name": "http", "port": 8080}
METRICS = {"name": "metrics", "port": 9090, "protocol": "TCP"}
UNNAMED = {"name": "", "port": 80}
DNS = {"name": "dns", "port": 53, "protocol": "UDP"}


@pytest.mark.parametrize(
    ("ports", "wanted", "number"),
    [
        ([HTTP], None, 8080),
        ([UNNAMED], None, 80),
        ([HTTP, DNS], None, 8080),
        ([HTTP, METRICS], "metrics", 9090),
        ([HTTP, METRICS], 9090, 9090),
        ([HTTP, METRICS], "8080", 8080),
        ([], 8080, 8080),  # a headless Service without ports
        ([{}], 8080, 8080),  # every port
    ],
)
def test_port(ports: list[Document], wanted: str | int | None, number: int) -> None:
    assert ids(endpoint_slice("a", pod("10.0.0.1"), ports=ports), port=wanted) == [f"10.0.0.1-{number}"]


@pytest.mark.parametrize(
    ("ports", "wanted", "message"),
    [
        ([HTTP, METRICS], None, "port: is required; the pods have http (8080), metrics (9090)"),
        ([], None, "port: is required; the pods have no named one"),
        ([{}], None, "port: is required; the pods have no named one"),
        ([DNS], None, "port: is required; the pods have no named one"),
        ([HTTP], "web", "port: web is no port of the pods, which have http (8080)"),
        ([HTTP, UNNAMED], 443, "port: 443 is no port of the pods, which have http (8080), 80"),
        ([DNS], "dns", "port: dns is no port of the pods, which have dns (53, UDP)"),
    ],
)
def test_no_such_port(ports: list[Document], wanted: str | int | None, message: str) -> None:
    assert refused(endpoint_slice("a", pod("10.0.0.1"), ports=ports), port=wanted) == message


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("ports", [[], [DNS]])
def test_pod_without_the_only_port_is_left_out(ports: list[Document], ready: bool) -> None:
    """Kubernetes gives the pods that lack a named port a slice of their own."""
    lacking = endpoint_slice("b", pod("10.0.0.2", ready=ready), ports=ports)
    assert ids(endpoint_slice("a", pod("10.0.0.1"), ports=[HTTP]), lacking) == ["10.0.0.1-8080"]


def test_pods_without_a_port_that_are_not_ready() -> None:
    """They say nothing about the port."""
    lacking = endpoint_slice("a", pod("10.0.0.1", ready=False), ports=[])
    assert refused(lacking).startswith("no pod is ready; ")
    assert ids(lacking, allow_empty=True) == []


def test_slices_with_different_ports() -> None:
    """Pods whose containers give the name another number, or none."""
    slices = [
        endpoint_slice("a", pod("10.0.0.1"), ports=[HTTP]),
        endpoint_slice("b", pod("10.0.0.2"), ports=[{"name": "http", "port": 8081}]),
        endpoint_slice("c", pod("10.0.0.3"), ports=[]),
    ]
    assert ids(*slices, port="http") == ["10.0.0.1-8080", "10.0.0.2-8081"]


# --- regions


@pytest.mark.parametrize(
    ("keys", "zone", "region", "notice"),
    [
        ({}, "eu-1a", "eu-1a", None),
        ({}, None, "default", "pods without a zone are in region default"),
        ({}, "a b", "default", "pods in zone a b are in region default"),
        ({"region": "emea"}, "eu-1a", "emea", None),
        ({"region": "emea"}, None, "emea", None),
        ({"zones": {"eu-1a": "emea"}}, "eu-1a", "emea", None),
        ({"zones": {"eu-1a": "emea"}}, "eu-1b", "default", "pods in zone eu-1b are in region default"),
        ({"zones": {"eu-1a": "emea"}}, None, "default", "pods without a zone are in region default"),
        ({"zones": {"eu-1a": "emea"}, "region": "us"}, "eu-1b", "us", None),
    ],
)
def test_region(keys: Document, zone: str | None, region: str, notice: str | None) -> None:
    regions, said = found(endpoint_slice("a", pod("10.0.0.1", zone=zone)), **keys)
    assert regions == {"10.0.0.1-9000": region}
    assert said == (None if notice is None else f"{notice}; discovery.kubernetes.region sets another")


# --- access


def service_account(folder: Path) -> Path:
    """The files that the kubelet mounts."""
    shelf = Shelf(folder)
    (folder / "token").write_text("secret\n")
    (folder / "ca.crt").write_bytes(shelf.ca.read_bytes())
    (folder / "namespace").write_text("shop")
    return folder


IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_access_from_a_pod(tmp_path: Path) -> None:
    access = access_of(KubernetesDiscovery(service="workers"), IN_CLUSTER, service_account(tmp_path))
    assert (access.server, access.namespace, access.token()) == ("https://10.0.0.1:443", "shop", "secret")
    context = access.tls()
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1
    (tmp_path / "token").write_text("replaced")
    assert access.token() == "replaced"


def test_access_over_ipv6(tmp_path: Path) -> None:
    variables = {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    access = access_of(KubernetesDiscovery(service="workers"), variables, service_account(tmp_path))
    assert access.server == "https://[fd00::1]:443"


def test_configured_access(tmp_path: Path) -> None:
    """Another server gets no credentials of the pod."""
    config = KubernetesDiscovery(service="workers", namespace="shop", server="http://127.0.0.1:8001")
    access = access_of(config, IN_CLUSTER, service_account(tmp_path))
    assert (access.server, access.token(), access.tls()) == ("http://127.0.0.1:8001", None, None)
    (tmp_path / "other").write_text("other")
    config = KubernetesDiscovery(service="workers", namespace="mine", token_file=tmp_path / "other")
    access = access_of(config, IN_CLUSTER, tmp_path)
    assert (access.server, access.namespace, access.token()) == ("https://10.0.0.1:443", "mine", "other")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("token", None, "token_file: cannot read FOLDER/token: No such file or directory"),
        ("token", b"", "token_file: FOLDER/token: has no bearer token"),
        ("token", b"a\nHost: b", "token_file: FOLDER/token: has no bearer token"),
        ("token", "é".encode(), "token_file: FOLDER/token: has no bearer token"),
        ("token", b"\xff", "token_file: FOLDER/token: not UTF-8, byte 0xff (at line 1, column 1)"),
        ("ca.crt", None, "ca_file: cannot read FOLDER/ca.crt: No such file or directory"),
        ("ca.crt", b"", "ca_file: FOLDER/ca.crt: has no certificate in PEM"),
        (
            "ca.crt",
            b"-----BEGIN CERTIFICATE-----\nabc\n",
            "ca_file: FOLDER/ca.crt: has no certificate in PEM",
        ),
        ("namespace", None, "namespace: cannot read FOLDER/namespace: No such file or directory"),
    ],
)
def test_files_of_the_service_account(tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    folder = service_account(tmp_path)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        access_of(KubernetesDiscovery(service="workers"), IN_CLUSTER, folder)
    assert str(caught.value) == f"discovery.kubernetes.{message.replace('FOLDER', str(folder))}"


@pytest.mark.parametrize("missing", [*IN_CLUSTER])
def test_outside_a_pod(tmp_path: Path, missing: str) -> None:
    variables = {name: value for name, value in IN_CLUSTER.items() if name != missing}
    with pytest.raises(ConfigError, match="server: is required outside a pod"):
        access_of(KubernetesDiscovery(service="workers"), variables, tmp_path)


# --- configuration


def test_check(tmp_path: Path) -> None:
    """It does not need a cluster."""
    path = tmp_path / "balancer.toml"
    path.write_text('[discovery.kubernetes]\nservice = "workers"\nzones = { eu-1a = "emea" }\n')
    ran = CliRunner().invoke(cli, ["check", str(path)])
    assert (ran.exit_code, ran.output.splitlines()[1:]) == (
        0,
        ["  kubernetes workers, looked up while it runs"],
    )
