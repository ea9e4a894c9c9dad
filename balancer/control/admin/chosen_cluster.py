"""The cluster that an admin request is about: that of `?cluster=NAME`, or the default one."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from balancer.control.control_plane import ControlPlane

CLUSTER = "cluster"

FRONT: web.AppKey[Any] = web.AppKey("front", object)
"""Application key: the control plane of the default cluster."""


def plane_of(request: web.Request) -> ControlPlane:
    """Return the control plane of the cluster that a request is about.

    Raises `UnknownCluster`, which is answered before a handler is called.
    """
    front: ControlPlane = request.app[FRONT]
    return front.of_cluster(request.query.get(CLUSTER))
