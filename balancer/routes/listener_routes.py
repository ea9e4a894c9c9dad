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
        self._own: Route | None = None

    def apply(self, own: Route | None) -> None:
        """Apply a route of its own, and what has changed in `shared`; from the next request on."""
        self._own = own
        self.is_in_use = own is not None or self._shared.is_in_use
        self.has_default = self._shared.has_default
        self.edits = self._shared.edits

    def find(self, request: Request, client: Client) -> Route | None:
        """Return the route of the request, without a search if it is the listener's own."""
        own = self._own
        if own is not None and (own.is_plain or own.matches(request, self.asked(request, client))):
            return own
        return self._shared.find(request, client)
