"""Chromium without a window, driven over its DevTools protocol: one page at a time, and what it asked for and said."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

PATIENCE = 60.0
"""Seconds for Chromium to do anything, on a busy machine."""

NARROW, WIDE = 390, 1280


def program() -> str | None:
    """The path of Chromium; None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


LEFT = ("Inspected target navigated or closed", "Execution context was destroyed")
"""Errors of an evaluation whose page was replaced by another one before the answer."""


class PageLeft(Exception):
    """The page was left before it has answered."""


class Tab:
    """A page in the browser. `requests` are the addresses that it asked for; `problems` what its console reported."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._session: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.ensure_future(self._read())
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def _read(self) -> None:
        async for text in self._wire:
            message = json.loads(text)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
                continue
            parameters = message.get("params", {})
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(parameters["exceptionDetails"])[:600])
            elif message["method"] == "Log.entryAdded" or (
                message["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning")
            ):
                self.problems.append(json.dumps(parameters)[:600])

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result. Raises `PageLeft`."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": parameters, **self._session}
        await self._wire.send(json.dumps(command))
        async with asyncio.timeout(PATIENCE):
            message = await answer
        if message.get("error", {}).get("message", "").startswith(LEFT):
            raise PageLeft
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    async def attach(self) -> None:
        """Open an empty page, which commands are for from then on."""
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    async def show(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Set the width of the window and the colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        for domain in ("Network", "Runtime", "Log", "Page"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """Evaluate an expression, or wait for a promise."""
        found = await self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def eventually(self, expression: str) -> None:
        """Wait until an expression is true, on this page or one that it leads to."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(PageLeft):
                    if await self.value(expression):
                        return
                await asyncio.sleep(0.05)  # the page has no event for it

    async def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **CODES[key], **text)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])


CODES = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13},
    "ArrowRight": {"windowsVirtualKeyCode": 39},
    "0": {"windowsVirtualKeyCode": 48},
    "+": {"windowsVirtualKeyCode": 187},
}


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """Start Chromium with an empty page."""
    path = program()
    assert path is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = await asyncio.create_subprocess_exec(
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-extensions", "--no-proxy-server",
            "--remote-debugging-port=0", f"--user-data-dir={home}", "about:blank",
            stdout=DEVNULL, stderr=PIPE,
        )  # fmt: skip
        try:
            async with connect(await debugger_of(process), max_size=1 << 26) as wire:
                tab = Tab(wire)
                try:
                    await tab.attach()
                    yield tab
                finally:
                    await tab.close()
        finally:
            process.kill()
            await process.communicate()


async def debugger_of(process: Process) -> str:
    """The address that Chromium prints when it is ready."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while line := await process.stderr.readline():
            if found := re.search(rb"DevTools listening on (ws://\S+)", line):
                return found[1].decode()
    raise AssertionError("Chromium has ended")
