"""Generated part of `docs/http.md`: number of rows, and differences of other proxies.

`python -m tests.support.tables` regenerates it; a test compares it with the rows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from tests.balancer.http.http_rows.peers import PEERS
from tests.balancer.http.http_rows.table import GROUPS, ROWS
from tests.balancer.http.http_rows.verdicts import wanted
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "http.md"
KNOWN = Path(__file__).with_name("differences.toml")

BEGIN, END = "<!-- made from the rows: begin -->\n", "<!-- made from the rows: end -->\n"


@dataclass(frozen=True)
class Reason:
    """A reason and the rows that it explains: for each peer, name -> verdict."""

    why: str
    verdicts: dict[str, dict[str, str]]


def reasons() -> list[Reason]:
    """Known differences, in the order of the file."""
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))["because"]
    names = [peer.name for peer in PEERS]
    return [Reason(" ".join(each["why"].split()), {n: each[n] for n in names if n in each}) for each in known]


def differences(peer: str) -> dict[str, str]:
    """Row -> verdict of `peer`, where it differs from the balancer's."""
    return {row: verdict for because in reasons() for row, verdict in because.verdicts.get(peer, {}).items()}


def made() -> str:
    """The generated text between the marks."""
    return "\n".join([*_counts(), *_reasons()])


def _counts() -> Iterator[str]:
    yield "| rows | of | nginx differs in | HAProxy differs in |"
    yield "|---|---|---|---|"
    others = [differences(peer.name) for peer in PEERS]
    for title, rows in (*GROUPS.items(), ("All", ROWS)):
        counts = (sum(row.name in other for row in rows) for other in others)
        yield f"| {len(rows)} | {title} | {' | '.join(map(str, counts))} |"
    yield ""


def _reasons() -> Iterator[str]:
    rows = {row.name: row for row in ROWS}
    for because in reasons():
        yield fill(f"**{_bold(because.why)}", 120, break_long_words=False, break_on_hyphens=False)
        yield ""
        yield "| row | decided by | here | nginx | HAProxy |"
        yield "|---|---|---|---|---|"
        names = {name: None for verdicts in because.verdicts.values() for name in verdicts}
        for row in (rows[name] for name in names):
            found = " | ".join(because.verdicts.get(peer.name, {}).get(row.name, "") for peer in PEERS)
            yield f"| `{row.name}` | {row.clause} | {wanted(row)} | {found} |"
        yield ""


def _bold(text: str) -> str:
    """Set the first sentence in bold."""
    return re.sub(r"^(.*?[.:])(?= )", r"\1**", text, count=1) if re.search(r"[.:] ", text) else f"{text}**"


def replaced(page: str) -> str:
    """The page with the generated part replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + made() + "\n" + END + rest.partition(END)[2]
