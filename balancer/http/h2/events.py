"""Events of an HTTP/2 connection, and its error codes (RFC 9113 § 7).

An event is a tuple of four: kind, stream id, value, and a flag.

| kind | value | flag |
|---|---|---|
| HEAD | fields of a request, or of a final response | the stream has ended: there is no body |
| OVERSIZED | as HEAD; the list is larger than advertised, to be answered by 431 | as HEAD |
| INTERIM | fields of an interim response (1xx) | False |
| DATA | bytes of a body, empty only at the end | the stream has ended |
| TRAILERS | fields; they end the stream | True |
| RESET | error code: the stream ended early | the peer reset it; False: it violated the protocol |
| SETTINGS | None: the peer's settings have changed | False |
| PONG | eight bytes of our PING | False |
| GOAWAY | error code; the stream id is the last one that the peer may have processed | False |
| CLOSED | error code and reason; the connection is over, the last event | the peer ended it |

Fields are pairs of bytes, names in lower case, pseudo-fields first.
"""

from __future__ import annotations

from typing import Any, Final

Event = tuple[int, int, Any, bool]

HEAD: Final = 1
OVERSIZED: Final = 2
INTERIM: Final = 3
DATA: Final = 4
TRAILERS: Final = 5
RESET: Final = 6
SETTINGS: Final = 7
PONG: Final = 8
GOAWAY: Final = 9
CLOSED: Final = 10

STREAM_CLOSED: Final = 11
"""From a session to the engine only: a stream is over. Value: an error code; flag: its head cannot be sent."""

OUTPUT: Final = 12
"""From a session to the engine only. Value: bytes for the peer."""

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
ENHANCE_YOUR_CALM: Final = 11
HTTP_1_1_REQUIRED: Final = 13

_CODES: Final = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT"),
    *("STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR"),
    *("CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)


def join_data(events: list[Event]) -> list[Event]:
    """Join the DATA events of each stream to one, in the place of its first: what follows has a cost per event."""
    joined: list[Event] = []
    places: dict[int, int] = {}
    parts: dict[int, list[bytes]] = {}
    for event in events:
        kind, stream_id, data, has_ended = event
        if kind != DATA:
            joined.append(event)
        elif stream_id not in places:
            places[stream_id], parts[stream_id] = len(joined), [data]
            joined.append(event)
        else:
            parts[stream_id].append(data)
            if has_ended:
                joined[places[stream_id]] = (DATA, stream_id, b"", True)
    for stream_id, place in places.items():
        if len(parts[stream_id]) > 1:
            joined[place] = (DATA, stream_id, b"".join(parts[stream_id]), joined[place][3])
    return joined


def name_of(code: int) -> str:
    return _CODES[code] if code < len(_CODES) else f"code {code:#x}"
