"""Description of the interpreter's build."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from balancer.build import version_line
from experiments.platform.build import describe_build, interpreter_in_words, optimisation_in_words
from experiments.platform.command_line import run_command_line


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


def test_version_line_names_build_interpreter_and_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reason = tmp_path / "pure_because.txt"
    reason.write_text("no C compiler works here", encoding="utf-8")
    monkeypatch.setattr("balancer.build.REASON", reason)
    monkeypatch.setattr("balancer.build.build", lambda: "pure")
    assert version_line("balancer").endswith(
        f", pure build (no C compiler works here), CPython {platform.python_version()}, ngh2 {version('ngh2')}"
    )
    monkeypatch.setattr("balancer.build.build", lambda: "compiled")
    assert "compiled build, CPython" in version_line("balancer")


def test_missing_extra_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy is absent from an installation without the extra `lab`."""

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(sys, "argv", ["experiments"])
    with pytest.raises(SystemExit) as ended:
        run_command_line(
            click.Group("experiments", callback=missing, invoke_without_command=True), "experiments"
        )
    assert ended.value.code == 2
    assert capsys.readouterr().err == "experiments: needs numpy: pip install '.[lab]' in the checkout\n"
