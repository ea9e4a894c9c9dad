"""The objects of deploy/kubernetes."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.root import ROOT

HERE = ROOT / "deploy" / "kubernetes"


Object = dict[str, Any]


KUSTOMIZATION: Object = yaml.safe_load((HERE / "kustomization.yaml").read_text(encoding="utf-8"))


OBJECTS: list[Object] = [
    document
    for name in KUSTOMIZATION["resources"]
    for document in yaml.safe_load_all((HERE / name).read_text(encoding="utf-8"))
]


WORKERS = [o for o in OBJECTS if o["kind"] == "StatefulSet"]


def label_of(o: Object) -> str:
    return f"{o['kind']}/{o['metadata']['name']}"
