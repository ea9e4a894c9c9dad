"""Versions of Python and of the packages that influence a measurement."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from platform import python_version

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
