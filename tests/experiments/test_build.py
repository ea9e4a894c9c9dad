"""What is said of the interpreter."""

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
def test_a_plain_build_is_said_to_be_unfair(arguments: str) -> None:
    """And what to do about it."""
    found = optimisation_in_words(arguments)
    assert found.startswith("NOT built with PGO or LTO")
    assert "make bench PYTHON=/usr/bin/python3" in found


def test_this_interpreter_and_unit_are_named() -> None:
    assert platform.python_version() in interpreter_in_words()
    assert "build" in describe_build() or "pure source" in describe_build()
