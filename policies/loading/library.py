"""Policy classes by reference, each file and module read once per library. A new library reads the files again.

An installed module is imported as usual, once per process, so a new version of it needs a new process.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from policies.errors import BrokenPolicy, some_of
from policies.loading.construction import fault_at
from policies.loading.modules import PrivateModules
from policies.loading.reference import Reference, reference_in
from policies.loading.source import Source


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module that was loaded, and its source."""

    module: ModuleType
    source: Source


class Library:
    """Loaded files and modules by path or name. `given` are sources that are used instead of the files on the disk."""

    def __init__(self, given: Iterable[Source] = ()) -> None:
        self._given = {source.path: source for source in given}
        self._loaded: dict[str, Loaded] = {}  # by absolute path of a file, or name of a module

    @property
    def sources(self) -> list[Source]:
        """Sources of the files that were loaded, without modules."""
        return [loaded.source for place, loaded in self._loaded.items() if os.path.isabs(place)]

    @property
    def versions(self) -> dict[str, str]:
        """Version by path, of files and modules."""
        return {loaded.source.path: loaded.source.version for loaded in self._loaded.values()}

    @property
    def paths(self) -> frozenset[str]:
        """Absolute paths of everything that was loaded."""
        return frozenset(path for loaded in self._loaded.values() for path in loaded.source.paths)

    def give(self, sources: Iterable[Source]) -> None:
        """Use these sources from now on; a file that was loaded in another version is loaded again."""
        for source in sources:
            self._given[source.path] = source
            loaded = self._loaded.get(source.path)
            if loaded is not None and loaded.source.version != source.version:
                del self._loaded[source.path]

    def differs_from(self, other: Library) -> bool:
        """Return whether a file that was given to this library has another version in the other one, or is unknown
        there."""
        known = other.versions
        return any(source.version != known.get(source.path) for source in self._given.values())

    def find(self, name: str) -> type:
        """Return the class that a reference names. Raises `BrokenPolicy`."""
        reference = reference_in(name)
        return class_in(self._load(reference), reference.class_name)

    def source_of(self, name: str) -> Source:
        """Return the source of the file or module that a reference names. Raises `BrokenPolicy`."""
        return self._load(reference_in(name)).source

    def _load(self, reference: Reference) -> Loaded:
        place = os.path.abspath(reference.place) if reference.is_file else reference.place
        if place not in self._loaded:
            self._loaded[place] = self._file(place) if reference.is_file else _module(place)
        return self._loaded[place]

    def _file(self, path: str) -> Loaded:
        given = self._given.get(path)
        modules = PrivateModules(path, None if given is None else given.files)
        module = guarded(modules.load, path, lambda: Source(path, modules.files).paths)
        return Loaded(module, Source(path, dict(modules.files)))


def _module(name: str) -> Loaded:
    require_installed(name)
    module = guarded(lambda: import_module(name), name, lambda: _paths_of_module(name))
    path = getattr(module, "__file__", None) or name
    return Loaded(module, Source(path, {os.path.basename(path): _content(path)}))


def guarded(load: Callable[[], ModuleType], what: str, paths: Callable[[], frozenset[str]]) -> ModuleType:
    """Return what `load` returns. Raises `BrokenPolicy` for whatever it raises, with file and line."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        if isinstance(error, OSError) and error.filename == what:
            raise BrokenPolicy(f"{what}: {error.strerror}") from None
        place = fault_at(error, paths())
        raise BrokenPolicy(place if place.startswith(what) else f"{what}: {place}") from None


def require_installed(name: str) -> None:
    """Check that Python finds a module. Raises `BrokenPolicy`, with a hint if there is a file of that name."""
    top = name.partition(".")[0]
    try:
        if find_spec(top) is not None:
            return
    except (ImportError, ValueError):
        return
    file = f"{name.replace('.', '/')}.py"
    hint = f"; for the file write {file}:CLASS" if os.path.isfile(file) else ""
    raise BrokenPolicy(f"no module '{top}' is installed{hint}")


def class_in(loaded: Loaded, name: str) -> type:
    """Return the class of a loaded module. Raises `BrokenPolicy` if there is none of that name."""
    path = loaded.source.path
    found = vars(loaded.module).get(name)
    if found is None:
        own = [
            each for each, value in vars(loaded.module).items() if inspect.isclass(value) and _has_pick(value)
        ]
        close = get_close_matches(name, own, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        known = f"; its policies: {some_of(own)}{hint}" if own else "; it has no class with a method pick"
        raise BrokenPolicy(f"{path}: has no class '{name}'{known}")
    if not inspect.isclass(found):
        line = _line_of(loaded.source, name)
        raise BrokenPolicy(f"{path}{line}: '{name}' must be a class, and is a {type(found).__name__}")
    return found


def _has_pick(value: type) -> bool:
    return callable(getattr(value, "pick", None)) and not vars(value).get("_is_protocol", False)


def _line_of(source: Source, name: str) -> str:
    """Return `:LINE` of the definition of a function or the assignment of a name; empty if it is imported."""
    text = source.files[os.path.basename(source.path)].decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.removeprefix("async ").removeprefix("def ")
        if words.startswith(name) and not words[len(name) :][:1].isidentifier():
            return f":{number}"
    return ""


def _paths_of_module(name: str) -> frozenset[str]:
    """Return the file of a module that could not be imported."""
    try:
        found = find_spec(name)
    except Exception:  # whatever its packages raise
        return frozenset()
    return frozenset([found.origin] if found is not None and found.origin else [])


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
