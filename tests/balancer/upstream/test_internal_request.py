"""The balancer's own requests: how much of a response they take."""

from __future__ import annotations

import pytest

from balancer.http.h1.response_head import ResponseHeads
from balancer.upstream.internal_request import BodyTooLong, InternalRequest, InternalResult


@pytest.mark.parametrize("body", [b"abcd", b"abcde"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["in one read", "in parts"])
def test_limit_of_a_body_holds_however_it_comes(body: bytes, is_whole: bool) -> None:
    """A body of the limit is taken. Of a longer one the bytes up to the limit are."""
    results: list[InternalResult] = []
    request = InternalRequest(None, results.append, body_limit=4)
    response = ResponseHeads().incoming(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n")
    if is_whole:
        request.response_whole(response, body)
    else:
        request.response_started(response)
        request.response_body(body[:2])
        request.response_body(body[2:])
        request.response_ended(b"")
    (result,) = results
    assert (result.status, result.body) == (200, b"abcd")
    assert isinstance(result.error, BodyTooLong) == (len(body) > 4)
    assert result.fault == ("more than 4 bytes of body" if len(body) > 4 else None)
