"""Limit on the attempts of a request: how many further endpoints it may be sent to.

An attempt that found no connection sent nothing, so it costs no worker anything: it does not count against the limit,
and the request goes on to every other endpoint. Where half of the workers die at once, three picks of a thousand would
otherwise meet three dead ones before their failures are known.
"""

from __future__ import annotations

from collections.abc import Collection

from policies.routing.endpoint_set import EndpointSet


def has_another_try(
    limit: int,
    attempts: int,
    unsent: int,
    tried: Collection[str],
    endpoints: EndpointSet,
    *,
    needs_other: bool,
) -> bool:
    """Return whether a request with so many `attempts`, at the endpoints `tried`, may have another one.

    `limit` is the maximum number of further endpoints that it is sent to, 0 for a single attempt. `unsent` attempts,
    one per endpoint at most, were not sent and do not count. The endpoint that failed is tried again only if no other
    is available, and only once; never with `needs_other`. Looks at one endpoint more than were tried, at most.
    """
    if not limit or attempts - min(unsent, len(endpoints.states)) > limit:
        return False
    is_first = attempts == 1 and not needs_other
    return is_first or endpoints.has_untried(tried)
