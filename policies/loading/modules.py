"""Import of a policy's file and of the modules beside it, apart from all other modules of the process.

Each load makes new module objects under names of its own, so a reload never meets an old module, and two policies may
have helpers of the same name. Nothing of it stays in `sys.modules`, and no bytecode is cached: a cache judges by whole
seconds and would return the old code after a quick edit.
"""

from __future__ import annotations

import builtins
import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from itertools import count
from types import ModuleType
from typing import Any

from policies.loading.source import MAX_SOURCE_BYTES

PREFIX = "steelyard_policy_"
NUMBERS = count(1)


class PrivateModules:
    """The modules of one load of the file `path`.

    `files` are the contents read so far, by path relative to the file's directory. `given` are contents that are used
    instead of the files on the disk.
    """

    def __init__(self, path: str, given: Mapping[str, bytes] | None = None) -> None:
        self.directory, self._main = os.path.split(path)
        self._given = given
        self._package = f"{PREFIX}{next(NUMBERS)}"
        self._main_module = f"{self._package}.{self._main.removesuffix('.py').replace('.', '_')}"
        self._modules: dict[str, ModuleType] = {}
        self._depth = 0
        self._builtins = {**vars(builtins), "__import__": self._import}
        self.files: dict[str, bytes] = {}

    def load(self) -> ModuleType:
        """Import the file. Raises `OSError` if it cannot be read or is too large, and whatever its code raises."""
        if self._given is None:
            self._read(self._main)
        package = ModuleType(self._package)
        package.__path__ = []
        self._modules[self._package] = package
        with self._registered():
            __import__(self._main_module)
            return sys.modules[self._main_module]

    def find_spec(self, module: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how a module of this package is loaded; None for another one, or if no such file is beside the policy.

        The import system calls it while this load is registered in `sys.meta_path`."""
        if module.partition(".")[0] != self._package:
            return None
        name = module.partition(".")[2].replace(".", "/")
        candidates = [f"{name}/__init__.py", f"{name}.py"] if module != self._main_module else [self._main]
        for candidate in candidates:
            if self._read_if_present(candidate):
                loader: Any = self
                is_package = candidate.endswith(
                    "/__init__.py"
                )  # of an empty path: only this finds its modules
                path = os.path.join(self.directory, candidate)
                spec = ModuleSpec(module, loader, origin=path, loader_state=candidate, is_package=is_package)
                spec.has_location = True
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave making the module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a file with the `__import__` of this load."""
        spec = module.__spec__
        assert spec is not None
        assert spec.origin is not None
        vars(module)["__builtins__"] = self._builtins
        exec(compile(self.files[spec.loader_state], spec.origin, "exec", dont_inherit=True), vars(module))

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as a statement in a module of this load does: modules beside the file, which Python does not find
        otherwise, are private."""
        top = name.partition(".")[0]
        if level == 0 and (top in sys.modules or not self._is_beside(top)):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        package = str((globals or {}).get("__package__")) if level else self._package
        whole = resolve_name("." * (level or 1) + name, package)
        known = self._modules.get(whole)  # inside a function the statement runs again with every call
        if known is None or not all(hasattr(known, each) for each in fromlist or ()):
            with self._registered():
                known = builtins.__import__(whole, None, None, fromlist or ("",), 0)
        whole = f"{self._package}.{top}"
        return known if fromlist else self._modules.get(whole) or sys.modules[whole]

    def _is_beside(self, top: str) -> bool:
        """Return whether a top-level name is a module beside the file: one that is neither imported already nor
        found elsewhere, so that a file `json.py` or `policies.py` hides nothing."""
        if f"{self._package}.{top}" in self._modules:
            return True
        if not (self._read_if_present(f"{top}/__init__.py") or self._read_if_present(f"{top}.py")):
            return False
        try:
            found = find_spec(top)
        except (ImportError, ValueError):
            return True
        beside = os.path.join(self.directory, "")
        is_private = found is None or (found.origin or "").startswith(beside)
        if not is_private:
            self.files.pop(f"{top}/__init__.py", None)
            self.files.pop(f"{top}.py", None)
        return is_private

    def _read_if_present(self, name: str) -> bool:
        if name in self.files:
            return True
        if self._given is not None and name in self._given:
            self.files[name] = self._given[name]
            return True
        if not os.path.isfile(os.path.join(self.directory, name)):
            return False
        self._read(name)
        return True

    def _read(self, name: str) -> None:
        with open(os.path.join(self.directory, name), "rb") as file:
            content = file.read(MAX_SOURCE_BYTES + 1)
        if len(content) + sum(map(len, self.files.values())) > MAX_SOURCE_BYTES:
            message = f"a policy and the modules beside it may have {MAX_SOURCE_BYTES >> 10} KiB together"
            raise OSError(errno.EFBIG, message, os.path.join(self.directory, self._main))
        self.files[name] = content

    @contextmanager
    def _registered(self) -> Iterator[None]:
        """Make the modules of this load known to the import system for a while: dataclasses and relative imports look
        them up."""
        self._depth += 1
        if self._depth == 1:
            sys.meta_path.append(self)
            sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                own = [name for name in list(sys.modules) if name.partition(".")[0] == self._package]
                self._modules.update((name, sys.modules.pop(name)) for name in own)
                sys.meta_path.remove(self)
