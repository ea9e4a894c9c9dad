"""The library `ngh2` (libnghttp2): the only module that imports it, so that another one can replace it."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ngh2

from balancer.http2.events import CLOSED, DATA, GOAWAY, HEAD, INTERIM, PONG, RESET, SETTINGS, TRAILERS
from balancer.http2.limits import ACK_LIMIT, HARD, LARGEST_HEAD, Limits

LibraryError = ngh2.NGH2Error
DenialOfService = ngh2.DenialOfServiceError

_WITHOUT_LIMIT: Final = (1 << 40, 1 << 40)

STREAM_CLOSED: Final = 20

KINDS: Final[dict[type, int]] = {
    ngh2.RequestReceived: HEAD,
    ngh2.ResponseReceived: HEAD,
    ngh2.DataReceived: DATA,
    ngh2.InformationalResponseReceived: INTERIM,
    ngh2.TrailersReceived: TRAILERS,
    ngh2.StreamReset: RESET,
    ngh2.StreamClosed: STREAM_CLOSED,
    ngh2.SettingsReceived: SETTINGS,
    ngh2.PingAcknowledged: PONG,
    ngh2.GoAwayReceived: GOAWAY,
    ngh2.ConnectionClosed: CLOSED,
}
"""Types of the library's events; all others advance nothing."""


@cache
def _configuration(limits: Limits) -> ngh2.Configuration:
    hard = HARD * limits.header_list
    return ngh2.Configuration(
        auto_window_update=False,
        max_send_header_block_length=LARGEST_HEAD,
        max_outbound_ack=ACK_LIMIT,
        glitch_rate_limit=(limits.idle_frames, limits.idle_frames),  # PRIORITY and others that are no event
        stream_reset_rate_limit=_WITHOUT_LIMIT,  # counted here, for the library's answer is INTERNAL_ERROR
        max_inbound_header_list_size=hard,
        max_inbound_header_count=hard // 32,
    )


def new_connection(is_server: bool, limits: Limits) -> Any:
    """Return a connection of the library."""
    return ngh2.Connection(ngh2.Role.SERVER if is_server else ngh2.Role.CLIENT, _configuration(limits))
