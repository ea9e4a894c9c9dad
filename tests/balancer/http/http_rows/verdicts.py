"""Verdicts: the result of a row in a few words that can be compared between proxies.

How the client's connection ends after a rejection or a generated error is not part of a verdict; `Seen` has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.balancer.http.http_rows.player import Answer, Seen
from tests.balancer.http.http_rows.recorder import RecordedRequest, echo
from tests.balancer.http.http_rows.row import CRLF, Reach, Row

UNFINISHED = ("short", "cut", "waits", "unreadable")


def wanted(row: Row) -> str:
    """The verdict that the row requires."""
    words = " ".join(map(str, (*row.interims, row.status[0], *row.more)))
    if row.reach is not Reach.WHOLE:
        return "no answer, short" if row.end == "short" else f"refused {words}"
    if row.end in UNFINISHED:
        return row.end
    return words if row.status[0] == 502 else f"{words} {row.end}"


def observed(row: Row, seen: Seen) -> str:
    """The verdict on the observations."""
    words = " ".join(map(str, _statuses(row, seen)))
    if not of_row(seen.whole):
        is_known = bool(seen.begun) and row.reach is Reach.NOTHING
        said = f"refused {words}" if seen.answers else f"no answer, {seen.end}"
        return said + (", but known to the worker" if is_known else "")
    if seen.end in UNFINISHED:
        return seen.end
    if words.endswith("502"):
        return row.end if row.end in UNFINISHED else words
    if not seen.answers:
        return seen.end
    others = [name for name, _ in changes(row, seen)] if row.reach is Reach.WHOLE else []
    return ", ".join((f"{words} {seen.end}", *others))


def _statuses(row: Row, seen: Seen) -> list[int]:
    """Statuses, with the preferred one for any accepted one."""
    found = [answer.status for answer in (*seen.interims, *seen.answers)]
    return [
        row.status[0] if status in row.status and row.end not in UNFINISHED else status for status in found
    ]


def of_row(requests: Iterable[RecordedRequest]) -> list[RecordedRequest]:
    """Without the request after the row."""
    return [request for request in requests if request.target != b"/next"]


def changes(row: Row, seen: Seen) -> Iterator[tuple[str, object]]:
    """Deviations from the row at worker and client: name and observation."""
    taken, answer = of_row(seen.whole), seen.answers[0]
    lines = [request.line for request in taken]
    if len(lines) != len(row.lines):
        yield "other requests", lines
    elif lines != [*row.lines]:
        yield "other request line", lines
    if not _is_like(taken[0].head, row.holds, row.lacks, row.exact):
        yield "other request fields", taken[0].head
    if taken[0].body != row.body:
        yield "other request body", taken[0].body
    if _plain(taken[0].trailers) != _plain(row.trailers):
        yield "other request trailers", taken[0].trailers
    yield from _changes_of_answer(row, seen, answer)


def _changes_of_answer(row: Row, seen: Seen, answer: Answer) -> Iterator[tuple[str, object]]:
    heads = b"".join(each.head for each in (*seen.interims, answer))
    if not _is_like(heads, row.gets, row.gets_not, row.gets_exact):
        yield "other response fields", heads
    if any(body != wanted for body, wanted in _bodies(row, seen)):
        yield "other response body", [each.body for each in seen.answers]
    if _plain(answer.trailers) != _plain(row.gets_trailers):
        yield "other response trailers", answer.trailers


def _bodies(row: Row, seen: Seen) -> Iterator[tuple[bytes, bytes]]:
    """Received and expected bodies."""
    if row.gets_body is not None:
        yield seen.answers[0].body, row.gets_body
    elif not row.answer and not row.early:
        for answer, request in zip(seen.answers, of_row(seen.whole), strict=False):
            yield answer.body, echo(request).partition(CRLF + CRLF)[2]


def _is_like(head: bytes, holds: Iterable[bytes], lacks: Iterable[bytes], exact: Iterable[bytes]) -> bool:
    """Whether a head has all of `holds` and none of `lacks` (field names or whole lines)."""
    found = _plain(head.split(CRLF))
    names = {line.partition(b":")[0] for line in found}
    is_clean = not any(line in found or line in names for line in _plain(lacks))
    return set(_plain(holds)) <= set(found) and is_clean and all(part in head for part in exact)


def _plain(lines: Iterable[bytes]) -> list[bytes]:
    """Lines in lower case and without outer space."""
    parts = (line.partition(b":") for line in lines)
    return [(name.strip() + colon + value.strip()).lower() for name, colon, value in parts]
