"""Of what a result is, beside our own code: Python and the packages that measuring depends on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from platform import python_version

PACKAGES = ("steelyard", "aiohttp", "uvloop", "httptools", "numpy")


def versions() -> dict[str, str]:
    """Python and the packages that a measurement depends on; "absent" where one is not installed."""
    return {"python": python_version(), **{package: version_of(package) for package in PACKAGES}}


def version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
