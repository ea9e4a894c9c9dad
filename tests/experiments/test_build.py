"""Description of the interpreter's build."""

from __future__ import annotations

import platform

import pytest

from experiments.build import describe_build, interpreter_in_words, optimisation_in_words


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("'--enable-optimizations' '--with-lto'", "built with PGO and LTO"),
        ("'--enable-optimizations' '--enable-shared'", "built with PGO"),
        ("'--with-lto=thin'", "built with LTO, but without PGO: others are faster"),
        ("'--with-wheel-pkg-dir=/usr/share/python-wheels/'", "built by Debian's rules, with PGO"),
    ],
)
def test_optimised_builds(arguments: str, expected: str) -> None:
    assert optimisation_in_words(arguments) == expected


@pytest.mark.parametrize("arguments", ["", "'--prefix=/opt/python' '--enable-shared'"])
def test_a_build_without_optimisation_is_reported(arguments: str) -> None:
    """With the remedy."""
    found = optimisation_in_words(arguments)
    assert found.startswith("NOT built with PGO or LTO")
    assert "make bench PYTHON=/usr/bin/python3" in found


def test_description_of_this_build() -> None:
    assert platform.python_version() in interpreter_in_words()
    assert "build" in describe_build() or "pure source" in describe_build()
