"""Request ids of the balancer."""

from __future__ import annotations

import re

from balancer.http.h1.request_ids import fresh_ids


def test_ids_are_unique_and_have_one_prefix() -> None:
    fresh_id, other = fresh_ids(), fresh_ids()
    ids = [fresh_id() for _ in range(2000)]
    assert len({*ids, *(other() for _ in range(2000))}) == 4000
    assert len({each.partition(b"-")[0] for each in ids}) == 1
    assert all(re.fullmatch(rb"[0-9a-f]{12}-[0-9a-f]{3,}", each) for each in ids)
