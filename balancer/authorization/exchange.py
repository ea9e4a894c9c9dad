"""Exchange that is forwarded once the authorizer of its route has granted it.

It asks when it would make its first attempt: it has been admitted, and its body was received as far as buffering
requires it. Meanwhile its body waits as that of a request without an endpoint does. What is not granted is not
forwarded.
"""

from __future__ import annotations

from typing import Final

from balancer.authorization.authorizer import Authorizer
from balancer.cluster.cluster import Cluster
from balancer.errors import (
    AuthorizationFailed,
    ConnectFailed,
    Denied,
    ForwardingError,
    MalformedResponse,
    ResponseTimeout,
    UpstreamError,
)
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange import Exchange
from balancer.exchange.exchange_state import End, bytes_exhausted
from balancer.exchange.responder import Responder
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.http.h1.fields import Framing, without
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response
from balancer.upstream.request import LARGEST_SHARED, UpstreamRequest
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import NONE_TRIED, OutcomeKind, RequestFacts, kind_of_answer
from policies.routing.assignment import Assignment

BODY_LIMIT: Final = 65_536
"""Bytes of an answer's body, which is sent to a client whose request is denied."""


class Subrequest(RoutedAttempt):
    """One attempt at a subrequest, at an endpoint that the policy of the asked cluster picks; it reports to `asking`
    once, unless it is ended before."""

    def __init__(
        self, asking: AuthorizedExchange, head: bytes, cluster: Cluster, assignment: Assignment
    ) -> None:
        super().__init__(cluster, assignment)
        self._asking: AuthorizedExchange | None = asking
        self._head = head
        self._response: Response | None = None
        self._pieces: list[bytes] = []
        self.needs_own = len(head) > LARGEST_SHARED

    def connect_failed(self, error: ConnectFailed) -> None:
        self.response_failed(error)

    def send(self, upstream: UpstreamRequest) -> None:
        self.upstream = upstream
        head = self._head
        if self.assignment.endpoint.host:
            head = self.addressed(head, b"GET")
        upstream.send(head, self, b"GET", None)

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        self._note_head(response)
        self.response_body(body)
        self.response_ended(b"")

    def response_started(self, response: Response) -> None:
        if response.status >= 200:
            self._note_head(response)

    def _note_head(self, response: Response) -> None:
        self._response = response
        self.head_came(response)

    def response_body(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self._pieces.append(data)
        if self.bytes_out > BODY_LIMIT:
            self.response_failed(MalformedResponse(f"more than {BODY_LIMIT >> 10} KiB of body"))

    def response_ended(self, trailers: bytes) -> None:
        asking, response = self._asking, self._response
        if asking is None or response is None:
            return
        self.end(kind_of_answer(response.status), is_clean=True)
        asking.decided(response, b"".join(self._pieces))

    def response_failed(self, error: UpstreamError) -> None:
        asking = self._asking
        if asking is not None:
            self.end(error.outcome, is_clean=False)
            asking.undecided(error)

    # --- ends

    def end(self, kind: OutcomeKind, *, is_clean: bool = False) -> None:
        """Give up the connection, and settle; nothing more is reported."""
        self._asking = None
        self.release(is_clean)
        self.settle(kind, self.cluster.now(), 0)


ABANDONED: Final = OutcomeKind.ABANDONED

PASSED_ON: Final = frozenset((401, 403, 301, 302, 303, 307, 308))
"""Statuses that deny a request, with an answer that its client gets. Any other one but 2xx is no decision."""

TRIES: Final = 2
"""Endpoints that are asked, the second one if the first has not answered."""


class AuthorizedExchange(Exchange):
    """A request of a route with an `Authorizer`, which is asked before the first attempt."""

    _subrequest: Subrequest | None = None
    _is_granted = False
    _added = b""  # lines of the answer that the client gets
    _denial: tuple[Response, bytes] | None = None  # the answer, with its body
    _key = b""
    _asked_at = 0.0
    _tries = 0

    def __init__(
        self, authorizer: Authorizer, cluster: Cluster, downstream: Responder, request: Request
    ) -> None:
        super().__init__(cluster, downstream, request)
        self._authorizer = authorizer
        self._asked = NONE_TRIED

    def attempt(self) -> None:
        if self._is_granted:
            super().attempt()
            return
        authorizer, request, now = self._authorizer, self.request, self.cluster.now()
        self._key = authorizer.key_of(request, self.downstream.client)
        lines = authorizer.remembered(self._key, now) if self._key else None
        if lines is not None:
            self._grant(lines)
            return
        if not self.charge():
            self.reject(bytes_exhausted())
            return
        self._started_at = self._started_at or now
        self._asked_at = now
        self._ask()

    def _ask(self) -> None:
        authorizer = self._authorizer
        cluster, path = authorizer.cluster, authorizer.config.path
        facts = RequestFacts("GET", path, cluster.home_region, None, self._tries, self._asked)
        try:
            assignment = cluster.router.route(facts)
        except (NoEndpointAvailable, Overloaded):
            self.reject(AuthorizationFailed("no endpoint can decide whether the request is authorised"))
            return
        self._tries += 1
        self._asked |= {assignment.state.id}
        head = authorizer.subrequest_head(self.request)
        self._subrequest = subrequest = Subrequest(self, head, cluster, assignment)
        pool = cluster.pools.by_id[assignment.state.id]
        if cluster.pools.room == 0 and not pool.has_idle:
            subrequest.end(ABANDONED)
            self.reject(AuthorizationFailed("no descriptor is left to ask whether the request is authorised"))
        else:
            subrequest.lease(pool, is_idempotent=self._tries < TRIES)

    def request_ended(self, trailers: bytes) -> None:
        super().request_ended(self._authorizer.trailers_for_worker(trailers))

    # --- the answer

    def decided(self, response: Response, body: bytes) -> None:
        self._subrequest = None
        authorizer, status = self._authorizer, response.status
        if 200 <= status < 300:
            lines = authorizer.lines_for_worker(response.block)
            authorizer.remember(self._key, lines, self.cluster.now())
            self._added = authorizer.lines_for_client(response.block)
            if self.body_buffer is None:
                self.sent()
            self._grant(lines)
        elif status in PASSED_ON:
            self._denial = response, body
            self.reject(Denied(status, len(body)))
        else:
            self.reject(AuthorizationFailed(f"the answer to whether the request is authorised is {status}"))

    def undecided(self, error: UpstreamError) -> None:
        self._subrequest = None
        if self._tries < TRIES:
            self._ask()
        else:
            self.reject(AuthorizationFailed("no endpoint has decided whether the request is authorised"))

    def _grant(self, lines: bytes) -> None:
        self._is_granted = True
        self.request.head = self._authorizer.head_for_worker(self.request.head, lines)
        super().attempt()

    def new_attempt(self, assignment: Assignment) -> Attempt:
        attempt = super().new_attempt(assignment)
        if self._added:
            attempt.added, attempt.is_read = self._added, True
        return attempt

    # --- ends

    def check(self, now: float) -> None:
        timeout = self._authorizer.config.timeout
        if self._subrequest is not None and now - self._asked_at > timeout:
            self._subrequest.end(ResponseTimeout.outcome)
            self._subrequest = None
            self.reject(AuthorizationFailed(f"not authorised within {timeout:g} s"))
        else:
            super().check(now)

    def finish(
        self, end: End, kind: OutcomeKind, error: ForwardingError | None = None, now: float = 0.0
    ) -> None:
        if self._subrequest is not None:
            self._subrequest.end(ABANDONED)
            self._subrequest = None
        super().finish(end, kind, error, now)

    def _send_error(self, error: ForwardingError) -> bool:
        if self._denial is None or self.rules.is_rpc:
            return super()._send_error(error)
        request, downstream = self.request, self.downstream
        answer, body = self._denial
        block = without((b"content-length",), answer.block) + b"Content-Length: %d\r\n" % len(body)
        if downstream.client.internal is not None:
            block = downstream.client.internal.without(block)
        edit = self.own_edit()
        if edit is not None:
            block = edit(block)
        whole = Response(answer.status, answer.line, block, Framing.LENGTH, len(body), True, answer.has_date)
        shown = b"" if request.method == b"HEAD" else body
        stays = downstream.respond_whole(request, whole, block, shown, self.is_complete)
        if stays and downstream.is_held:
            downstream.unhold()
        return stays
