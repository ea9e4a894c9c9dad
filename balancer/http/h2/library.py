"""The HTTP/2 library, libnghttp2: the only module that knows how it is called, so that another can replace it."""

from __future__ import annotations

from typing import Any

import ngh2

from balancer.http.h2.limits import Http2Limits

try:
    from balancer.http.h2.compiled_session import Session
except ImportError:  # a pure build, or a release of ngh2 that hides its library
    from balancer.http.h2.pure_session import Session

LibraryError = ngh2.NGH2Error
DenialOfService = ngh2.DenialOfServiceError


def new_session(is_server: bool, limits: Http2Limits, settings: dict[int, int], window: int) -> Any:
    """Return a session (`pure_session.py`)."""
    return Session(is_server, limits, settings, window)
