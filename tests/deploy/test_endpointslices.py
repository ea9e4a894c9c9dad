"""Kubernetes manifests with discovery by EndpointSlices: valid, with exactly the rights that the balancer uses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from balancer.cluster.discovery.kubernetes.api import SERVICE_ACCOUNT
from balancer.configuration import load
from tests.deploy.kinds import problems
from tests.deploy.kubernetes_objects import HERE as BASE
from tests.deploy.kubernetes_objects import KUSTOMIZATION as BASE_KUSTOMIZATION
from tests.deploy.kubernetes_objects import OBJECTS as BASE_OBJECTS
from tests.deploy.kubernetes_objects import WORKERS, label_of
from tests.support.kubernetes_api import PATH

HERE = BASE.parent / "endpointslices"
Object = dict[str, Any]

KUSTOMIZATION: Object = yaml.safe_load((HERE / "kustomization.yaml").read_text(encoding="utf-8"))
OWN = [name for name in KUSTOMIZATION["resources"] if not name.startswith("..")]
OBJECTS: list[Object] = [
    document for name in OWN for document in yaml.safe_load_all((HERE / name).read_text(encoding="utf-8"))
]
PATCH: Object = yaml.safe_load((HERE / "deployment.yaml").read_text(encoding="utf-8"))
SOURCE = load(HERE / "balancer.toml", {"listen": "127.0.0.1:0"}).discovery.kubernetes


def found(kind: str) -> Object:
    """The only object of that kind."""
    (it,) = [o for o in OBJECTS if o["kind"] == kind]
    return it


@pytest.mark.parametrize("document", OBJECTS, ids=label_of)
def test_objects_are_valid(document: Object) -> None:
    assert not problems(document)


def test_every_file_is_in_the_kustomization() -> None:
    """It extends that of the other manifests and replaces their configuration."""
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    named = {*OWN, *generated["files"], *(patch["path"] for patch in KUSTOMIZATION["patches"])}
    assert {*named, "kustomization.yaml"} == {path.name for path in HERE.iterdir()}
    assert (HERE / "../kubernetes").resolve() == BASE
    assert KUSTOMIZATION["resources"][0] == "../kubernetes"
    assert KUSTOMIZATION["namespace"] == BASE_KUSTOMIZATION["namespace"]
    (replaced,) = BASE_KUSTOMIZATION["configMapGenerator"]
    assert generated == {**replaced, "behavior": "replace"}


def test_role_has_the_rights_that_the_balancer_uses() -> None:
    """A list and a watch of the resource in its requests, and nothing else."""
    _, _, group, version, _, _, resource = PATH.split("/")
    (rule,) = found("Role")["rules"]
    assert rule == {"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}
    assert version == "v1"


def test_role_is_that_of_the_service_account() -> None:
    account, binding = found("ServiceAccount"), found("RoleBinding")
    assert binding["roleRef"]["name"] == found("Role")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": account["metadata"]["name"],
        "namespace": KUSTOMIZATION["namespace"],
    }
    pod = PATCH["spec"]["template"]["spec"]
    assert pod == {"serviceAccountName": account["metadata"]["name"], "automountServiceAccountToken": True}
    (deployment,) = [o for o in BASE_OBJECTS if o["kind"] == "Deployment"]
    assert PATCH["metadata"]["name"] == deployment["metadata"]["name"]


def test_balancer_uses_the_pods_credentials() -> None:
    """They are where Kubernetes mounts them, so no key names them."""
    assert SOURCE is not None
    assert (SOURCE.server, SOURCE.namespace, SOURCE.token_file, SOURCE.ca_file) == (None,) * 4
    assert Path("/var/run/secrets/kubernetes.io/serviceaccount") == SERVICE_ACCOUNT


def test_service_selects_all_workers() -> None:
    service = found("Service")
    assert SOURCE is not None
    assert service["metadata"]["name"] == SOURCE.service
    selector = service["spec"]["selector"]
    for workers in WORKERS:
        template = workers["spec"]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        (port,) = template["spec"]["containers"][0]["ports"]
        assert [each["targetPort"] for each in service["spec"]["ports"]] == [port["name"]]
    assert [each["name"] for each in service["spec"]["ports"]] == [SOURCE.port]


@pytest.mark.peer
def test_kustomize_renders_them() -> None:
    """With the patched Deployment and the other configuration."""
    command = next(filter(None, map(shutil.which, ("kustomize", "kubectl"))), None)
    if command is None:
        pytest.skip("neither kustomize nor kubectl is here")
    verb = "build" if Path(command).name == "kustomize" else "kustomize"
    ran = subprocess.run([command, verb, HERE], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rendered = list(yaml.safe_load_all(ran.stdout))
    assert not [problem for o in rendered for problem in problems(o)]
    (configuration,) = [o for o in rendered if o["kind"] == "ConfigMap"]
    assert configuration["data"] == {"balancer.toml": (HERE / "balancer.toml").read_text(encoding="utf-8")}
    (deployment,) = [o for o in rendered if o["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert len(rendered) == len(OBJECTS) + len(BASE_OBJECTS) + 1
