"""Pictures of the README and the documentation: `make pictures`, with Chromium on the PATH.

The verdict and the terminal are of one simulated campaign, whose seed is fixed; the live page is of a balancer under
load before three workers, one of which becomes slow.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html import escape
from io import BytesIO

from PIL import Image

from experiments.platform.ports import free_ports
from tests.support.chromium import WIDE, chromium
from tests.support.root import ROOT

FOLDER = ROOT / "docs" / "pictures"
CAMPAIGN = (
    *("region-brownout", "--policies", "round-robin,region-aware,latency-weighted,steelyard"),
    *("--simulated", "--blocks", "8"),
)
"""That of `make demo`."""

FIGURES = {"paired-ratios.svg": "verdict.svg", "tail-over-time.svg": "tail-over-time.svg"}

LAST_RUNS = 3
"""Lines of runs that the picture of the terminal keeps."""

LOAD_S = 45
"""Seconds of load before the live page."""

SLOW_AT_S = 22
HEIGHT = 1150
STYLE = """
text {font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #222}
rect {fill: #f6f7f8}
@media (prefers-color-scheme: dark) {text {fill: #e8eaec} rect {fill: #1d2024}}
"""


def terminal(lines: list[str]) -> str:
    """Return lines of a terminal as SVG, light or dark as the reader's system is."""
    width, height = 20 + 7.85 * max(map(len, lines)), 20 + 18 * len(lines)
    rows = "\n".join(
        f'<text x="10" y="{24 + 18 * at}" xml:space="preserve">{escape(line)}</text>'
        for at, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}">\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" rx="6"/>\n{rows}\n</svg>\n'
    )


def with_last_runs(printed: str) -> list[str]:
    """Return the lines of a campaign without most of its runs, and without what follows the verdict's details."""
    lines = [line.rstrip() for line in printed.splitlines()]
    runs = [at for at, line in enumerate(lines) if line.startswith("[")]
    return [f"$ experiments run {' '.join(CAMPAIGN)}", *lines[: runs[0]], "…", *lines[runs[-LAST_RUNS] :]]


async def campaign() -> None:
    """Draw the verdict and the terminal."""
    with tempfile.TemporaryDirectory() as name:
        command = (*("-m", "experiments", "run", *CAMPAIGN), "--out", f"{name}/report")
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, cwd=name)
        printed = (await process.communicate())[0].decode().replace(f"{name}/report", "results/report")
        for drawn, shown in FIGURES.items():
            shutil.copy(f"{name}/report/figures/{drawn}", FOLDER / shown)
    (FOLDER / "terminal.svg").write_text(terminal(with_last_runs(printed)), encoding="utf-8")


@asynccontextmanager
async def program(*command: str) -> AsyncIterator[str]:
    """Run a program of this checkout; yields its first line, and ends it."""
    process: Process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, stdout=PIPE, stderr=PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode()
    finally:
        with suppress(ProcessLookupError):  # it has ended
            process.terminate()
        await process.communicate()


async def live_page() -> None:
    """Take the live page, light and dark."""
    emea, us, asia, port, admin = map(str, free_ports(5))
    serve = ("--port", port, "--admin", admin, "--home-region", "emea")
    endpoints = [
        f"--worker={region}=http://127.0.0.1:{at}"
        for region, at in (("emea", emea), ("us", us), ("asia", asia))
    ]
    async with (
        program("workers", "serve", "--region", "emea", "--port", emea, "--rtt", "30ms"),
        program("workers", "serve", "--region", "us", "--port", us, "--rtt", "100ms"),
        program("workers", "serve", "--region", "asia", "--port", asia, "--rtt", "180ms"),
        program("balancer", "serve", *endpoints, *serve),
        chromium() as tab,
    ):
        await tab.show(WIDE, height=HEIGHT)
        await tab.ask("Emulation.setScrollbarsHidden", hidden=True)
        await tab.open(f"http://127.0.0.1:{admin}/-/")
        load = ("load", f"http://127.0.0.1:{port}/work", "--rate", "60", "--duration", f"{LOAD_S + 15}s")
        with tempfile.TemporaryDirectory() as name:
            async with program("experiments", *load, "--out", f"{name}/load"):
                await asyncio.sleep(SLOW_AT_S)
                fault = ("fault", f"http://127.0.0.1:{emea}", "--slow", "10", "--lasts", "8s")
                async with program("workers", *fault):
                    await asyncio.sleep(LOAD_S - SLOW_AT_S)
                for is_dark in (False, True):
                    await tab.show(WIDE, dark=is_dark, height=HEIGHT)
                    taken = await tab.ask("Page.captureScreenshot", format="png")
                    picture = Image.open(BytesIO(b64decode(taken["data"]))).convert("RGB")
                    palette = picture.quantize(256, dither=Image.Dither.NONE)
                    palette.save(FOLDER / f"live-page{'-dark' if is_dark else ''}.png", optimize=True)


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    await campaign()
    await live_page()


if __name__ == "__main__":
    asyncio.run(main())
