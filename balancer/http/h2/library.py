"""The HTTP/2 library, libnghttp2: the only module that knows how it is called, so that another can replace it."""

from __future__ import annotations

import ngh2

try:
    from balancer.http.h2.compiled_session import Session as Session
except ImportError:  # a pure build, or a release of ngh2 that hides its library
    from balancer.http.h2.pure_session import Session as Session

LibraryError = ngh2.NGH2Error
DenialOfService = ngh2.DenialOfServiceError
