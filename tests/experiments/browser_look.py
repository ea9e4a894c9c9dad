"""What a browser measures of a page, at a desk's and a phone's width."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.chromium import NARROW, WIDE, chromium

WIDTHS = (WIDE, NARROW)

MEASURES = """(() => {
  const root = document.documentElement;
  const sticking = [...document.querySelectorAll("main *")].filter(
    (part) => !part.closest(".scroll *") && part.getBoundingClientRect().right > root.clientWidth + 1);
  return {
    width: root.clientWidth, needed: root.scrollWidth, title: document.title,
    sticking: sticking.map((part) => part.outerHTML.slice(0, 80)),
    images: [...document.images].map((image) => image.complete && image.naturalWidth > 0),
    sources: new Set([...document.images].map((image) => image.currentSrc)).size,
  };
})()"""


def looked_at(page: Path) -> tuple[list[dict[str, Any]], str]:
    """What the browser measured at each width, and what it said on its console."""

    async def look() -> tuple[list[dict[str, Any]], str]:
        found = []
        async with chromium() as tab:
            await tab.ask("Emulation.setScrollbarsHidden", hidden=True)
            for width in WIDTHS:
                await tab.show(width)
                await tab.open(page.as_uri())
                await tab.eventually("document.readyState === 'complete'")
                found.append(await tab.value(MEASURES))
            return found, "\n".join(tab.problems)

    return asyncio.run(look())
