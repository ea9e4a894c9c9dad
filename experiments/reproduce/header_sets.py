"""Request heads as sent by browsers, apps, CDNs and proxies, and the internal names of a fictitious network.

The heads are in `header_sets.txt`, written by hand, in the order and spelling of the sender. Each has 10 to 30 fields;
fewer than one in ten of all is internal, and most heads have none.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

_TOPICS = ("edge", "cache", "mesh", "auth", "bot", "waf", "dns", "log", "ray", "colo", "plan", "zone")
_SUFFIXES = ("id", "key", "source", "time", "state", "rule", "flag", "target", "score", "trace")

INTERNAL: Final = (
    *(f"steel-int-{topic}-{suffix}" for topic in _TOPICS for suffix in _SUFFIXES),
    *("x-origin-shard", "x-worker-token", "x-tenant-internal", "x-debug-upstream", "x-raw-client-hello"),
)
"""Names that must not pass in either direction: 125."""

SETS: Final = tuple(
    heads.partition("\n")[2].rstrip("\n") + "\n"
    for heads in resources.files(__package__).joinpath("header_sets.txt").read_text("utf-8").split("\n\n")
)
"""A text for each head, without the comment that names its sender."""

Fields = tuple[tuple[str, str], ...]


def fields_of(text: str) -> Fields:
    """Pairs of name and value in the order of the text."""
    pairs = (line.split(": ", 1) for line in text.splitlines())
    return tuple((name, value) for name, value in pairs)


def block_of(text: str) -> bytes:
    """Header block as a proxy stores it: the lines with surrounding CRLFs."""
    return b"\r\n" + text.replace("\n", "\r\n").encode()
