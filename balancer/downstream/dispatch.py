"""Dispatch of requests: the handler of each, by path, route, rate limit and mirror."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from balancer.authorization.authorizer import Authorizer
from balancer.authorization.exchange import AuthorizedExchange
from balancer.cluster.cluster import Cluster
from balancer.errors import AmbiguousPath, NoRoute
from balancer.exchange.exchange import Exchange
from balancer.exchange.observers import ExchangeObserver, RequestLog, RequestTrace
from balancer.exchange.responder import RequestHandler, Responder
from balancer.http.h1.request_head import Request
from balancer.http.h1.traced_head import TracedRequest
from balancer.mirroring.mirror import Mirror, RequestCopy
from balancer.mirroring.observer import MirrorObserver
from balancer.routes.canary_guard import TalliedRequest
from balancer.routes.model_exchange import ModelExchange, names_model
from balancer.routes.own_response import OwnResponse
from balancer.routes.route import Route, body_bound
from balancer.routes.table import RouteTable
from balancer.syntax.urls import ADMIN_PREFIX
from policies.insight.version_guard import Tally

AdminExchanges = Callable[[Any, Request], RequestHandler]
"""Creates the handler of an admin request, for its connection or stream."""


NO_ROUTE: Final = NoRoute("no route matches this host and path")
NO_MODEL: Final = NoRoute("no route matches this host, path and model")


def handler_of(
    cluster: Cluster,
    downstream: Responder,
    request: Request,
    admin_exchange: AdminExchanges,
    routes: RouteTable | None,
) -> tuple[RequestHandler, int | None]:
    """Return the handler of a request whose head is complete, and how many bytes of body it may have.

    Rate limits apply after the route is found, and a mirror copies what they admit. Where a route depends on the model
    that the body names, this is called again by the handler that has received the body.
    """
    if request.target.startswith(ADMIN_PREFIX):
        return admin_exchange(downstream, request), cluster.body_limit
    handler: RequestHandler | None = None
    mirror: Mirror | None = None
    authorizer: Authorizer | None = None
    route: Route | None = None
    tally: Tally | None = None
    limiter = cluster.limiter
    edits = None if routes is None else routes.edits
    if routes is not None and routes.is_in_use:
        try:
            route = routes.find(request, downstream.client)
        except AmbiguousPath as error:
            route, handler = None, OwnResponse(cluster, downstream, request, error, edits=edits)
        if request.body_bound and request.model is None and handler is None and names_model(request):
            find = partial(handler_of, cluster, downstream, request, admin_exchange, routes)
            asking = ModelExchange(cluster, downstream, request, find)
            asking.edits = edits
            asking.observers = observers_of(asking, None, None)
            otherwise = body_bound(cluster) if route is None else route.body_bound()
            request.body_bound = max(request.body_bound, otherwise)
            return asking, request.body_bound
        target: Cluster | None = None
        if route is not None:
            limiter, edits, target = route.limiter, route.edits, route.cluster
            if target is None and route.split is not None:
                target, tally = route.split.assign(request, downstream.client)
        if route is not None and target is not None:
            cluster, mirror, authorizer = target, route.mirror, route.authorizer
            route.rewrite(request)
        elif handler is None and (route is not None or not routes.has_default):
            missing = NO_ROUTE if request.model is None else NO_MODEL
            handler = OwnResponse(cluster, downstream, request, route or missing, edits=edits)
    if limiter is not None:
        refusal = limiter.refusal(request, downstream.client)
        if refusal is not None:
            handler = OwnResponse(cluster, downstream, request, refusal, route, edits)
    cluster.counts.requests += 1
    if handler is not None:
        return handler, cluster.body_limit
    if edits is not None:
        edits.request.edit(request, downstream.client, cluster)
    copy = None if mirror is None else mirror.copy_of(request, downstream.client, cluster.body_limit)
    if authorizer is None:
        exchange = Exchange(cluster, downstream, request)
    else:
        exchange = AuthorizedExchange(authorizer, cluster, downstream, request)
    exchange.edits = edits
    tracing = cluster.process.tracing
    exports_spans = tracing is not None and tracing.spans is not None
    if copy is not None or cluster.journal is not None or exports_spans:
        exchange.observers = observers_of(exchange, copy, route)
    if tally is not None:
        exchange.observers = (*exchange.observers, TalliedRequest(tally))
    return exchange, cluster.body_limit


def observers_of(
    exchange: Exchange, copy: RequestCopy | None, route: Route | None
) -> tuple[ExchangeObserver, ...]:
    cluster, request = exchange.cluster, exchange.request
    arrived = request.arrived or exchange.downstream.arrived
    tracing = cluster.process.tracing
    log = None
    if cluster.journal is not None:
        log = RequestLog(cluster.journal, arrived, "" if route is None else route.label)
        if tracing is None and copy is None:
            return (log,)
    observers: list[ExchangeObserver] = [] if log is None else [log]
    if tracing is not None and isinstance(request, TracedRequest) and request.is_sampled:
        spans = tracing.spans
        if spans is not None:
            observers.append(RequestTrace(request, tracing, spans, arrived))
    if copy is not None:
        observers.append(MirrorObserver(copy, needs_grant=isinstance(exchange, AuthorizedExchange)))
    return tuple(observers)
