"""Kubernetes manifests, with discovery by names or by EndpointSlices: valid, consistent with each other, with their
configuration and with the image.

There is no cluster here. Types are checked against those of Kubernetes; errors that a cluster would show later, such
as a selector without pods or a short grace period, are checked by tests of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from balancer.cluster.discovery.kubernetes.api import SERVICE_ACCOUNT
from balancer.configuration import load
from balancer.control.admin.access import LIVE, READY
from tests.deploy.dockerfile import one, stages
from tests.deploy.kinds import problems
from tests.support.kubernetes_api import PATH
from tests.support.root import ROOT

Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    """The objects of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def label_of(o: Object) -> str:
    return f"{o['kind']}/{o['metadata']['name']}"


HERE = ROOT / "deploy" / "kubernetes"
(KUSTOMIZATION,) = read(HERE / "kustomization.yaml")
OBJECTS = [o for name in KUSTOMIZATION["resources"] for o in read(HERE / name)]
WORKERS = [o for o in OBJECTS if o["kind"] == "StatefulSet"]

SLICES = HERE.parent / "endpointslices"
(OF_SLICES,) = read(SLICES / "kustomization.yaml")
OWN = [name for name in OF_SLICES["resources"] if not name.startswith("..")]
SLICES_OBJECTS = [o for name in OWN for o in read(SLICES / name)]
SOURCE = load(SLICES / "balancer.toml", {"listen": "127.0.0.1:0"}).discovery.kubernetes

SETTINGS = load(HERE / "balancer.toml", {"listen": "127.0.0.1:0"})
FINAL = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1]


def found(kind: str, name: str) -> Object:
    (it,) = [o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return it


def of_slices(kind: str) -> Object:
    """The only object of that kind beside the EndpointSlices."""
    (it,) = [o for o in SLICES_OBJECTS if o["kind"] == kind]
    return it


DEPLOYMENT = found("Deployment", "balancer")
POD: Object = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER: Object = POD["containers"][0]


# --- validity


@pytest.mark.parametrize("document", [*OBJECTS, *SLICES_OBJECTS], ids=label_of)
def test_objects_are_valid(document: Object) -> None:
    assert not problems(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": {"minReplica": 1}}, "minReplica: is not a key"),
        ({"spec": {"minReplicas": "two"}}, "minReplicas: must be int"),
        ({"spec": {"scaleTargetRef": {"kind": "Deployment"}}}, "name: is required"),
        ({"apiVersion": "autoscaling/v7"}, "is not known"),
        ({"kind": "Autoscaler"}, "has no Autoscaler"),
    ],
)
def test_invalid_object_is_found(change: Object, message: str) -> None:
    """Guards against a check that accepts everything."""
    good = found("HorizontalPodAutoscaler", "balancer")
    bad = {**good, **change, "spec": {**good["spec"], **change.get("spec", {})}}
    assert any(message in problem for problem in problems(bad)), problems(bad)


def test_needed_version_is_named() -> None:
    """`preStop.sleep` is on by default since 1.30 (KEP-3960)."""
    assert "sleep" in CONTAINER["lifecycle"]["preStop"]
    needs = "Needs Kubernetes 1.30 or newer, for `preStop.sleep`"
    assert needs in (HERE / "kustomization.yaml").read_text(encoding="utf-8")
    assert needs in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_file_is_in_a_kustomization() -> None:
    """Otherwise it would not be applied."""
    named = {
        *KUSTOMIZATION["resources"],
        *KUSTOMIZATION["configMapGenerator"][0]["files"],
        "kustomization.yaml",
    }
    assert named == {path.name for path in HERE.iterdir()}


@pytest.mark.peer
@pytest.mark.parametrize(
    ("folder", "more"), [(HERE, 0), (SLICES, len(SLICES_OBJECTS))], ids=["names", "slices"]
)
def test_kustomize_renders_the_same_objects(folder: Path, more: int) -> None:
    """And the ConfigMap with the file."""
    command = next(filter(None, map(shutil.which, ("kustomize", "kubectl"))), None)
    if command is None:
        pytest.skip("neither kustomize nor kubectl is here")
    verb = "build" if Path(command).name == "kustomize" else "kustomize"
    ran = subprocess.run([command, verb, folder], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rendered = list(yaml.safe_load_all(ran.stdout))
    assert not [problem for o in rendered for problem in problems(o)]
    (configuration,) = [o for o in rendered if o["kind"] == "ConfigMap"]
    assert configuration["data"] == {"balancer.toml": (folder / "balancer.toml").read_text(encoding="utf-8")}
    (deployment,) = [o for o in rendered if o["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is bool(more)
    assert len(rendered) == len(OBJECTS) + more + 1


# --- the end of a pod


def test_grace_period_of_the_balancer_is_long_enough() -> None:
    """Pods get connections for a while after the signal; then the balancer's own grace period, then 5 s to exit."""
    wait = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] >= wait + SETTINGS.timeouts.shutdown + 5


@pytest.mark.parametrize("workers", WORKERS, ids=label_of)
def test_grace_period_of_workers_is_long_enough(workers: Object) -> None:
    pod = workers["spec"]["template"]["spec"]
    wait = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= wait + 10 + 5  # `workers serve --grace` is 10 s


def test_rollout_starts_a_pod_before_it_stops_one() -> None:
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_probes_use_the_balancers_readiness_and_liveness() -> None:
    """A draining balancer is not ready but live."""
    assert CONTAINER["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": "http"}
    assert b"/-/ready" in READY
    for probe in ("startupProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"] == {"path": LIVE.decode(), "port": "http"}


def test_admin_socket_has_a_writable_directory() -> None:
    """The root file system is read-only; the socket is among temporary files."""
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert [volume for volume in POD["volumes"] if volume["name"] == mounts["/tmp"] and "emptyDir" in volume]


# --- consistency


def selected(selector: dict[str, str]) -> Iterator[Object]:
    """The pod templates with these labels."""
    for o in OBJECTS:
        labels = o.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
        if labels and selector.items() <= labels.items():
            yield o


def test_every_selector_matches_its_pods() -> None:
    budget = found("PodDisruptionBudget", "balancer")["spec"]["selector"]["matchLabels"]
    for selector in (found("Service", "balancer")["spec"]["selector"], budget):
        assert list(selected(selector)) == [DEPLOYMENT]
    for o in (DEPLOYMENT, *WORKERS):
        assert list(selected(o["spec"]["selector"]["matchLabels"])) == [o]


def test_the_autoscaler_scales_the_deployment() -> None:
    """The Deployment has no number of replicas, which every apply would restore."""
    spec = found("HorizontalPodAutoscaler", "balancer")["spec"]
    target = {"apiVersion": DEPLOYMENT["apiVersion"], "kind": "Deployment", "name": "balancer"}
    assert spec["scaleTargetRef"] == target
    assert "replicas" not in DEPLOYMENT["spec"]
    assert "cpu" in CONTAINER["resources"]["requests"]  # what utilization is a share of
    assert spec["minReplicas"] > found("PodDisruptionBudget", "balancer")["spec"]["maxUnavailable"]


def test_ports_agree() -> None:
    """Service, container, $PORT and the image."""
    (port,) = CONTAINER["ports"]
    (service,) = found("Service", "balancer")["spec"]["ports"]
    environment = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}
    assert service["targetPort"] == port["name"]
    assert environment["PORT"] == str(port["containerPort"]) == one(FINAL, "EXPOSE").text


def test_configuration_is_mounted_where_it_is_read() -> None:
    (mount,) = (mount for mount in CONTAINER["volumeMounts"] if mount.get("readOnly"))
    (volume,) = (volume for volume in POD["volumes"] if "configMap" in volume)
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert CONTAINER["args"] == one(FINAL, "CMD").words()
    assert CONTAINER["args"][-1] == f"{mount['mountPath']}/{generated['files'][0]}"
    assert (volume["name"], volume["configMap"]["name"]) == (mount["name"], generated["name"])


def test_the_tag_is_the_version() -> None:
    (image,) = KUSTOMIZATION["images"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (image["name"], image["newTag"]) == ("steelyard", project["version"])
    containers = [o["spec"]["template"]["spec"]["containers"] for o in (DEPLOYMENT, *WORKERS)]
    assert {c["image"] for cs in containers for c in cs} == {"steelyard"}


@pytest.mark.parametrize("workers", WORKERS, ids=label_of)
def test_each_region_has_a_headless_service(workers: Object) -> None:
    """It selects that region's workers by their port, and they report that region."""
    name, spec = workers["metadata"]["name"], workers["spec"]
    service = found("Service", spec["serviceName"])
    container = spec["template"]["spec"]["containers"][0]
    assert service["spec"]["clusterIP"] == "None"
    assert list(selected(service["spec"]["selector"])) == [workers]
    (port,) = container["ports"]
    assert [p["targetPort"] for p in service["spec"]["ports"]] == [port["name"]]
    message = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert message["--region"] == name


def test_discovery_uses_the_names_of_the_services() -> None:
    """A headless Service of each region, absolute, and its port."""
    named = {source.name: source for source in SETTINGS.discovery.dns}
    services = [found("Service", workers["spec"]["serviceName"]) for workers in WORKERS]
    namespace = KUSTOMIZATION["namespace"]
    assert {f"{s['metadata']['name']}.{namespace}.svc.cluster.local" for s in services} == set(named)
    for service in services:
        name = service["metadata"]["name"]
        source = named[f"{name}.{namespace}.svc.cluster.local"]
        assert ([p["port"] for p in service["spec"]["ports"]], source.region) == ([source.port], name)
        assert service["spec"]["clusterIP"] == "None"


# --- rights


@pytest.mark.parametrize("o", [DEPLOYMENT, *WORKERS], ids=label_of)
def test_pods_are_restricted(o: Object) -> None:
    """The `restricted` level of the Pod Security Standards, which the namespace enforces, and a read-only root."""
    spec = o["spec"]["template"]["spec"]
    user = int(one(FINAL, "USER").text.split(":")[0])
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == user
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


POLICIES: list[Object] = [o["spec"] for o in OBJECTS if o["kind"] == "NetworkPolicy"]


def policy_of(o: Object) -> Object:
    """The only network policy that selects the pods of an object."""
    (it,) = [policy for policy in POLICIES if o in selected(policy["podSelector"]["matchLabels"])]
    return it


def test_the_network_allows_what_the_balancer_needs() -> None:
    """Clients and probes at its port, all workers at theirs, and DNS; nothing else."""
    policy = policy_of(DEPLOYMENT)
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (port,) = CONTAINER["ports"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["name"]}]}]
    to_workers, to_names = policy["egress"]
    (peer,) = to_workers["to"]
    assert list(selected(peer["podSelector"]["matchLabels"])) == WORKERS
    ports = {
        c["containerPort"] for o in WORKERS for c in o["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    assert [entry["port"] for entry in to_workers["ports"]] == [*ports] == [9000]
    assert to_names == {"ports": [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]}


@pytest.mark.parametrize("workers", WORKERS, ids=label_of)
def test_workers_are_reached_by_the_balancer_alone(workers: Object) -> None:
    policy = policy_of(workers)
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert list(selected(peer["podSelector"]["matchLabels"])) == [DEPLOYMENT]
    (port,) = workers["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port["name"]}]
    assert "Egress" in policy["policyTypes"]
    assert "egress" not in policy


def test_addresses_of_clients_from_outside_are_kept() -> None:
    """Kubernetes refuses externalTrafficPolicy for a Service that is reached within the cluster only."""
    outside = HERE.parent / "loadbalancer"
    kustomization = yaml.safe_load((outside / "kustomization.yaml").read_text(encoding="utf-8"))
    assert (outside / kustomization["resources"][0]).resolve() == HERE
    assert kustomization["patches"] == [{"path": "service.yaml"}]
    assert kustomization["namespace"] == KUSTOMIZATION["namespace"]
    patch = yaml.safe_load((outside / "service.yaml").read_text(encoding="utf-8"))
    base = found("Service", patch["metadata"]["name"])
    assert not problems({**base, "spec": {**base["spec"], **patch["spec"]}})
    assert patch["spec"] == {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    assert not base["spec"].keys() & patch["spec"].keys()


# --- discovery by EndpointSlices


def test_every_file_of_the_slices_is_in_their_kustomization() -> None:
    """It extends that of the other manifests and replaces their configuration."""
    (generated,) = OF_SLICES["configMapGenerator"]
    named = {*OWN, *generated["files"], *(patch["path"] for patch in OF_SLICES["patches"])}
    assert {*named, "kustomization.yaml"} == {path.name for path in SLICES.iterdir()}
    assert (SLICES / "../kubernetes").resolve() == HERE
    assert OF_SLICES["resources"][0] == "../kubernetes"
    assert OF_SLICES["namespace"] == KUSTOMIZATION["namespace"]
    (replaced,) = KUSTOMIZATION["configMapGenerator"]
    assert generated == {**replaced, "behavior": "replace"}


def test_role_has_the_rights_that_the_balancer_uses() -> None:
    """A list and a watch of the resource in its requests, and nothing else."""
    _, _, group, version, _, _, resource = PATH.split("/")
    (rule,) = of_slices("Role")["rules"]
    assert rule == {"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}
    assert version == "v1"


def test_role_is_that_of_the_service_account() -> None:
    account, binding = of_slices("ServiceAccount"), of_slices("RoleBinding")
    assert binding["roleRef"]["name"] == of_slices("Role")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": account["metadata"]["name"],
        "namespace": OF_SLICES["namespace"],
    }
    (patch,) = read(SLICES / "deployment.yaml")
    pod = patch["spec"]["template"]["spec"]
    assert pod == {"serviceAccountName": account["metadata"]["name"], "automountServiceAccountToken": True}
    assert patch["metadata"]["name"] == DEPLOYMENT["metadata"]["name"]


def test_balancer_uses_the_pods_credentials() -> None:
    """They are where Kubernetes mounts them, so no key names them."""
    assert SOURCE is not None
    assert (SOURCE.server, SOURCE.namespace, SOURCE.token_file, SOURCE.ca_file) == (None,) * 4
    assert Path("/var/run/secrets/kubernetes.io/serviceaccount") == SERVICE_ACCOUNT


def test_service_selects_all_workers() -> None:
    service = of_slices("Service")
    assert SOURCE is not None
    assert service["metadata"]["name"] == SOURCE.service
    selector = service["spec"]["selector"]
    for workers in WORKERS:
        template = workers["spec"]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        (port,) = template["spec"]["containers"][0]["ports"]
        assert [each["targetPort"] for each in service["spec"]["ports"]] == [port["name"]]
    assert [each["name"] for each in service["spec"]["ports"]] == [SOURCE.port]
