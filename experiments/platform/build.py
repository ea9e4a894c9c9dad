"""Describe the build under test: the form of the proxy (pure or compiled) and how the interpreter was built.

The same source costs a third more on an interpreter built without profile-guided optimisation. What cannot be read from
the build configuration is reported as absent.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

from balancer.build import build

DEBIAN = "/usr/share/python-wheels"
"""Marker in `CONFIG_ARGS` of Debian's and Ubuntu's packages, which are built with PGO by rules of their own."""


def describe_build() -> str:
    """Form of the proxy that is installed here: pure source or compiled build."""
    is_pure = build() == "pure"
    return "the pure source ('make bench' measures the compiled build)" if is_pure else "the compiled build"


def interpreter_in_words() -> str:
    """Interpreter in words: name, version, path and optimisation, for example `CPython 3.13.1 (…), built with PGO`."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    built = optimisation_in_words(str(sysconfig.get_config_var("CONFIG_ARGS") or ""))
    return f"{name} ({sys.executable}), {built}"


def optimisation_in_words(arguments: str) -> str:
    """Describe the optimisation that an interpreter's `configure` arguments request."""
    found = [
        name for name, mark in (("PGO", "--enable-optimizations"), ("LTO", "--with-lto")) if mark in arguments
    ]
    if found:
        missing = "" if "PGO" in found else ", but without PGO: others are faster"
        return f"built with {' and '.join(found)}{missing}"
    if DEBIAN in arguments:
        return "built by Debian's rules, with PGO"
    return (
        "NOT built with PGO or LTO: a fair comparison takes one that is (make bench PYTHON=/usr/bin/python3)"
    )


PACKAGES = ("steelyard", "aiohttp", "uvloop", "httptools", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of `PACKAGES`; "absent" where one is not installed."""
    return {"python": python_version(), **{package: version_of(package) for package in PACKAGES}}


def version_of(package: str) -> str:
    """Installed version of a package, or "absent"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
