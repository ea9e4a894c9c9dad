"""Load generators as processes of their own, configured by one JSON argument."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from experiments.errors import FleetFailedError
from experiments.platform.processes import program

PATIENCE = 15.0
"""Seconds after its end within which a generator must report."""

Report = TypeVar("Report")

Place = Callable[[], AbstractContextManager[None]]
"""Context in which a process is started: `with place():` pins it."""


def generator_argv(module: str, load: Any) -> list[str]:
    """Command line of a generator; its argument holds the fields of the data class `load`."""
    return [*program(module), json.dumps(asdict(load))]


@asynccontextmanager
async def started(argv: list[str], place: Place) -> AsyncIterator[Process]:
    """Start a process in a session of its own; killed on exit if it still runs."""
    with place():
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def report_of(process: Process, seconds: float) -> str:
    """Output of the process including standard error. Raises `FleetFailedError` if it does not end in time."""
    try:
        async with asyncio.timeout(seconds + PATIENCE):
            output, _ = await process.communicate()
    except TimeoutError:
        raise FleetFailedError("the load generator did not end") from None
    return output.decode(errors="replace")


def report_in(kind: type[Report], text: str) -> Report:
    """Parse the report of a generator of ours: the fields of a data class. Raises `FleetFailedError` if it is none."""
    try:
        return kind(**json.loads(text))
    except (ValueError, TypeError):
        raise FleetFailedError(f"the load generator gave no report: {text.strip()[-200:]}") from None
