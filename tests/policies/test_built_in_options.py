"""Descriptions and options of the built-in policies: the same in the compiled build as in the source."""

from __future__ import annotations

import ast

import pytest

from policies import registry
from tests.support.root import ROOT


def class_in_source(factory: registry.Factory) -> ast.ClassDef:
    path = ROOT / f"{factory.__module__.replace('.', '/')}.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == getattr(factory, "__name__", ""):
            return node
    raise LookupError(factory)


@pytest.mark.parametrize("name", registry.TABLE)
def test_registry_reads_what_the_source_states(name: str) -> None:
    factory = registry.TABLE[name]
    source = class_in_source(factory)
    assert registry.describe()[name] == (ast.get_docstring(source) or "").partition("\n")[0] != ""
    made = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    stated = [argument.arg for init in made for argument in init.args.kwonlyargs]
    if made:
        assert list(registry.options_of(factory)) == stated
