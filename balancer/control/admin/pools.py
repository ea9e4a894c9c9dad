"""The pool that an admin request is about: that of `?pool=NAME`, or the one without a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from balancer.control.control_plane import ControlPlane

POOL = "pool"

FRONT: web.AppKey[Any] = web.AppKey("front", object)
"""Application key: the control plane of the pool without a name."""


def pool_of(request: web.Request) -> ControlPlane:
    """Return the control plane of the pool that a request is about. Raises `UnknownCluster`, which is answered before a
    handler is called.
    """
    front: ControlPlane = request.app[FRONT]
    return front.pool(request.query.get(POOL))
