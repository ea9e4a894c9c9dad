"""Routes of one listener: a cluster or a redirect for all of its requests, else the routes of the configuration."""

from __future__ import annotations

from typing import Final

from balancer.config.schema.listeners import ListenerConfig
from balancer.config.schema.routes import AnswerConfig, RouteConfig
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from balancer.routes.route import Route
from balancer.routes.table import RouteTable

REMOVED: Final = RouteConfig(answer=AnswerConfig(status=404))
"""Route of a listener that the configuration has no more, until the next start closes it."""


def own_route(listener: ListenerConfig | None) -> RouteConfig | None:
    """Return the route that a listener has for all its requests."""
    return REMOVED if listener is None else listener.route


class ListenerRoutes(RouteTable):
    """The routes of requests that come to one listener: its own one, or `shared` where that does not match.

    A redirect does not match where a trusted proxy states that the client used its scheme already.
    """

    def __init__(self, shared: RouteTable) -> None:
        super().__init__()
        self._shared = shared
        self._has_own = False

    def apply(self, own: list[tuple[RouteConfig, Route]]) -> None:
        """Apply a route of its own, or none, and what has changed in `shared`; from the next request on."""
        shared = self._shared
        self.replace(own, has_default=shared.has_default, edits=shared.edits)
        self._has_own = self.is_in_use
        self.is_in_use = self.is_in_use or shared.is_in_use

    def find(self, request: Request, client: Client) -> Route | None:
        """Return the route of the request; `shared` is not searched if it is the listener's own."""
        own = super().find(request, client) if self._has_own else None
        return own or self._shared.find(request, client)
