"""All rows."""

from __future__ import annotations

from tests.balancer.http.http_rows import (
    request_connections,
    request_fields,
    request_framing,
    request_lines,
    response_framing,
    response_heads,
)
from tests.balancer.http.http_rows.row import Row

GROUPS = {
    "The request line": request_lines.ROWS,
    "Host and other fields": request_fields.ROWS,
    "Where a request ends": request_framing.ROWS,
    "What ends at each connection": request_connections.ROWS,
    "The response's head": response_heads.ROWS,
    "Where a response ends": response_framing.ROWS,
}

ROWS: tuple[Row, ...] = tuple(row for rows in GROUPS.values() for row in rows)
