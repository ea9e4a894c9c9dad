"""Request/response exchange: one request, from its head to its end.

An exchange admits the request, picks an endpoint or waits for one, retries where that is safe, and ends in one of a few
ways. Each attempt at an endpoint is an `Attempt` (`attempt.py`), which sends the request and passes the response to the
client; it returns here when it is complete or has failed. Nothing awaits: every step is called by the event that makes
it possible. docs/design.md shows the states and their transitions.
"""

from __future__ import annotations

from math import inf
from typing import Final, cast

from balancer.cluster.cluster import Cluster
from balancer.cluster.retry_rules import IDEMPOTENT
from balancer.cluster.wait_queue import Waiter
from balancer.errors import (
    CLIENT_LEFT,
    ConnectionCut,
    ForwardingError,
    RequestOverdue,
    ResponseTimeout,
    Unserved,
    UpstreamError,
)
from balancer.exchange.attempt import STREAMING, Attempt
from balancer.exchange.buffering import LARGE_BODY
from balancer.exchange.call_rules import HTTP, RpcRules, may_repeat, may_retry, refuses_again
from balancer.exchange.exchange_state import (
    FREE_BODY,
    LARGE_HEAD,
    End,
    ExchangeState,
    Race,
    State,
    bytes_exhausted,
)
from balancer.exchange.field_edits import EditedAttempt, Edits
from balancer.exchange.hedging import hedge
from balancer.exchange.observers import ExchangeObserver
from balancer.exchange.receiving import (
    came_whole,
    drop_body,
    receive_whole,
    received_part,
    received_whole,
)
from balancer.exchange.responder import Responder
from balancer.http.h1.fields import Framing
from balancer.http.h1.own_responses import BlockEdit, ErrorAnswer
from balancer.http.h1.request_head import Request
from balancer.upstream.request import RequestBody, UpstreamRequest
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import OutcomeKind, RequestFacts
from policies.overload.wait_queue import Ticket
from policies.prompts import Prompt
from policies.routing.assignment import Assignment

# Module constants, because an imported name or an attribute of a class is looked up anew each time.
NEW: Final = State.NEW
RECEIVING: Final = State.RECEIVING
QUEUED: Final = State.QUEUED
ATTEMPTING: Final = State.ATTEMPTING
ENDED: Final = State.ENDED
ABANDONED: Final = OutcomeKind.ABANDONED
WHOLE: Final = End.WHOLE
ERROR: Final = End.ERROR
CUT: Final = End.CUT
LEFT: Final = End.LEFT
TUNNEL: Final = End.TUNNEL
CHUNKED: Final = Framing.CHUNKED
LARGE: Final = LARGE_BODY
REPEATABLE: Final = IDEMPOTENT
NEVER: Final = inf

HALF_CLOSED_IN_S: Final = 0.1
"""Seconds after a request within which a FIN is taken for a half-close. A later one is taken to mean that the client
has left, and the client is asked at once."""


class Exchange(ExchangeState):
    """A request and its attempts: a `RequestHandler`, and a `Waiter` of the wait queue."""

    queued_at = 0.0  # when it entered the queue, less what it had waited before
    _waited = 0.0  # seconds, over all its turns
    ticket: Ticket[Waiter] | None = None  # its current one
    observers: tuple[ExchangeObserver, ...] = ()
    edits: Edits | None = None  # of its fields and those of its response
    prompt: Prompt | None = None  # of a request for inference, where it is read
    _has_looked = False  # for a prompt
    _needs_fresh = False  # the next attempt opens a new connection, so as not to meet a second stale one
    _waits_for_worker = False  # no other endpoint may be tried: a slow worker has all the remaining time
    _started_at = 0.0

    def __init__(self, cluster: Cluster, downstream: Responder, request: Request) -> None:
        super().__init__(cluster, downstream, request)
        self.rules = HTTP if downstream.call is None else RpcRules(downstream.call)
        if request.fields.has_body:
            self.is_complete = False
            self.body_buffer = RequestBody(cluster.retries.body, request.fields.framing is CHUNKED)

    # --- the request

    @property
    def head(self) -> bytes:
        return self.request.raw

    def start(self) -> None:
        """Start the exchange: all earlier requests of the connection have been answered."""
        self.usage = usage = self.downstream.usage
        usage.requests += 1
        for one in self.observers:
            one.started(self)
        request, limit = self.request, self.cluster.client_requests
        is_bounded = usage.requests > limit or request.fields.is_offer or len(request.raw) > LARGE_HEAD
        error = self.refusal(usage, limit) if is_bounded else None
        if error is not None:
            self.reject(error)
            return
        if self.cluster.admission is not None:
            try:
                self.level, self.deadline = self.cluster.admission.admit(request.fields.stated)
            except ForwardingError as refused:
                self.reject(refused)
                return
        if not self.is_complete:
            self._started_at = self.cluster.now()
            if receive_whole(self):
                return
        elif (
            (body := self.body_buffer) is not None
            and (rules := self.cluster.buffering) is not None
            and (body.is_chunked or body.size > LARGE)
        ):
            came_whole(self, body, rules)
        self.attempt()

    def request_body(self, data: bytes) -> None:
        """Forward bytes of the request body, without framing."""
        self.bytes_in += len(data)
        self.active_at = self.cluster.now()
        for one in self.observers:
            one.body_came(self, data)
        kept, upstream = self.body_buffer, self._upstream
        if self.state is ENDED or kept is None:
            return
        kept.add(data)
        if upstream is not None:
            upstream.write_body(data)
            kept.sent()
        elif self.state is RECEIVING:
            received_part(self)
        else:
            self._bound_body(kept.size)

    def request_ended(self, trailers: bytes) -> None:
        """End the request; `trailers` is a block of fields or b""."""
        self.is_complete = True
        trailers = self.downstream.client.sendable_trailers(trailers)
        if trailers and self.edits is not None:
            trailers = self.edits.request.kept(trailers)
        for one in self.observers:  # first: the exchange may end now
            one.request_came(self, trailers)
        upstream = self._upstream
        if self.state is ENDED or self.body_buffer is None:
            return
        self.body_buffer.trailers = trailers
        if upstream is not None:
            upstream.end_body(trailers)
        elif self.state is RECEIVING:
            received_whole(self)

    def _bound_body(self, size: int) -> None:
        """Hold or reject a request of which `size` bytes of the body wait for an endpoint."""
        if size > self.cluster.limits.buffer:
            self.downstream.hold()
        if (size > FREE_BODY or self.state is QUEUED) and not self.charge():
            if self.downstream.is_stream:  # its window is open
                self.reject(bytes_exhausted())
            else:
                self.downstream.hold()

    # --- an attempt

    def attempt(self) -> None:
        cluster, request = self.cluster, self.request
        if self.deadline < NEVER and self._started_at and self.is_late:  # looked at before, at the head
            self.reject(cluster.queue.too_late(self.level, cluster.now()))
            return
        method, target = request.method, request.target
        # GET is the common case, and decoding or looking in a set costs more than comparing.
        is_get = method == b"GET"
        name = "GET" if is_get else method.decode()
        key = None if cluster.key_of is None else request.key_by(cluster.key_of, self.downstream.client)
        tried = self.tried if not cluster.rests.until else cluster.left_out(self.tried)
        if cluster.prompts is not None and not self._has_looked:
            self._has_looked = True
            session = key if cluster.has_session_keys else None
            self.prompt = cluster.prompts.prompt_of(self.body_buffer, request.head, session)
        facts = RequestFacts(
            name, target.decode("latin-1"), cluster.home_region, key, self.attempts, tried, self.prompt
        )
        explaining = cluster.explaining
        for one in self.observers:
            one.picking(self)
        try:
            assignment = (
                cluster.router.route(facts)
                if explaining is None
                else explaining.route(facts, request, self.downstream.client)
            )
        except Overloaded:
            self.reject(cluster.queue.overloaded(self))
            return
        except NoEndpointAvailable:
            self._join_queue()
            return
        pool = cluster.pools.by_id[assignment.state.id]
        if cluster.pools.is_full and not (pool.has_idle or cluster.pools.may_lease(pool)):
            cluster.wait_for_descriptor(assignment)
            self._join_queue()
            return
        if not self._started_at:
            self._started_at = assignment.routed_at
        self.last_attempt = attempt = self.new_attempt(assignment)
        self.state = ATTEMPTING
        if explaining is not None:
            attempt.added += explaining.line
            attempt.is_read = True
        self.attempts += 1
        is_idempotent = is_get or method in REPEATABLE
        hedges = cluster.hedges if is_idempotent and self.is_complete and self.attempts == 1 else None
        if hedges is not None:
            hedges.watch(attempt)
        if self.rules.is_rpc:
            error = self.rules.attempted(pool)
            if error is not None:
                self.attempt_failed(attempt, error)
                return
        if self._needs_fresh:
            pool.open(attempt)
            return
        attempt.lease(pool, is_idempotent)
        if hedges is not None and cluster.router.doubts(assignment.state):
            self.hedge()

    def new_attempt(self, assignment: Assignment) -> Attempt:
        edits = self.edits
        attempt = (
            Attempt(self.cluster, assignment)
            if edits is None
            else EditedAttempt(self.cluster, assignment, edits)
        )
        attempt.exchange = self
        if self.needs_own:
            attempt.needs_own = True
        prompts, router = self.cluster.prompts, self.cluster.router
        if prompts is not None:
            attempt.answer = prompts.answer_reader(router, assignment, self._started_at, self.request.target)
        if self.attempts:
            attempt.head = self.request.another_head()
        for one in self.observers:
            one.on_attempt(self, attempt)
        return attempt

    @property
    def _upstream(self) -> UpstreamRequest | None:
        return self.last_attempt.upstream if self.last_attempt is not None else None

    # --- the wait queue (`Waiter`)

    def _join_queue(self) -> None:
        cluster, came_first = self.cluster, self.queued_at > 0.0 or self.attempts > 0
        self.queued_at = cluster.now() - self._waited
        self._started_at = self._started_at or self.queued_at
        self.deadline = min(self.deadline, self.rules.deadline)
        if not self.charge():
            self.reject(bytes_exhausted())
            return
        try:
            cluster.queue.join(self, is_first=came_first)
        except ForwardingError as error:
            self.reject(error)
        else:
            self.state = QUEUED
            for one in self.observers:
                one.queued(self)

    @property
    def client(self) -> object:
        return None if self.pending is None else self.pending.client

    def served(self) -> None:
        """Ask an endpoint: it is the request's turn. Its body stays charged until it has been sent."""
        self._waited = self.cluster.now() - self.queued_at
        self.state = NEW
        if self.body_buffer is None:
            self.sent()
        self.attempt()

    def decline(self, error: Unserved) -> None:
        self.reject(error)

    # --- hedging

    def hedge(self) -> None:
        if self.last_attempt is not None:
            hedge(self, self.last_attempt)

    def hedged(self, race: Race, second: Attempt) -> None:
        self.attempts += 1
        self.tried |= {cast(Attempt, self.last_attempt).assignment.state.id, second.assignment.state.id}
        self.race = race

    def continue_with(self, attempt: Attempt) -> None:
        self.last_attempt = attempt
        self.race = None
        if attempt.upstream is not None and self.downstream.is_write_paused:
            attempt.upstream.pause_reading()

    def end_hedging(self, kind: OutcomeKind) -> None:
        race, self.race = self.race, None
        if race is not None:
            race.end_other(cast(Attempt, self.last_attempt), kind)

    # --- back-pressure

    def pause_response(self) -> None:
        """Apply the client's back-pressure to the worker, unless the response is taken over."""
        if self.kept is not None:
            self.kept.update(self._upstream)
        if self.last_attempt is not None:
            self.last_attempt.pause()

    def resume_response(self) -> None:
        """Resume reading from the worker after the client has caught up."""
        upstream = self._upstream
        if upstream is not None:
            self.active_at = self.cluster.now()
            upstream.resume_reading()

    # --- ends of an attempt

    def attempt_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        attempt.discard_buffered()
        is_again = refuses_again(self, attempt, error)
        attempt.end(OutcomeKind.BUSY if is_again else error.outcome, error)
        if error.needs_own:
            self.needs_own = True
        if attempt.state is not STREAMING and may_retry(self, attempt, error):
            self._retry(attempt, needs_fresh=True)
        else:
            self.reject(error)

    def repeat(self, attempt: Attempt, kind: OutcomeKind, *, is_clean: bool) -> None:
        attempt.end(kind, is_clean=is_clean)
        self._retry(attempt, needs_fresh=False)

    def attempt_timed_out(self, attempt: Attempt) -> None:
        if self._waits_for_worker or self.race is not None:
            return
        if not may_repeat(self, attempt, needs_other=True):
            self._waits_for_worker = True
        else:
            self.repeat(attempt, ResponseTimeout.outcome, is_clean=False)

    def _retry(self, attempt: Attempt, *, needs_fresh: bool) -> None:
        self.tried |= {attempt.assignment.state.id}
        self.last_attempt = None
        self._needs_fresh = needs_fresh
        self.cluster.counts.retried += 1
        self.attempt()

    # --- timeouts

    def check(self, now: float) -> None:
        """Enforce all timeouts of the exchange, and ask a client that may have closed; `now` is the cached time."""
        total, attempt = self.cluster.timeouts.total, self.last_attempt
        if self.state is ENDED:
            return
        if self.downstream.has_ended and self._may_ask:
            self.downstream.ask()
        if self.kept is not None:
            self.kept.update(self._upstream)
        if total is not None and now - self._started_at > total:
            error = RequestOverdue(f"not answered in full within {total:g} s")
            self.reject(error, error.outcome)
        elif self.state is QUEUED:
            self.cluster.queue.check(self, now)
        elif attempt is not None:
            self.rules.check(self, attempt, now)

    def client_ended(self, now: float) -> None:
        """Ask a client that has sent its FIN whether it still reads, unless the FIN has come with the request: then the
        next sweep asks."""
        whole_at = self._started_at if self.body_buffer is None else self.downstream.idle_since
        if now - whole_at > HALF_CLOSED_IN_S and self._may_ask:
            self.downstream.ask()

    @property
    def _may_ask(self) -> bool:
        """Whether an interim response may be sent: not to HTTP/1.0, nor after an upgrade offer or a response's head."""
        if self.request.fields.is_http10 or self.downstream.pending_upgrade is not None:
            return False
        return self.last_attempt is None or self.last_attempt.is_awaiting

    # --- the end

    def tunnel_began(self, status: int) -> None:
        self.cluster.counts.responses[status] += 1
        if self.kept is not None:
            drop_body(self, self.kept)
        self.state = ENDED
        self.uncharge()

    def tunnel_ended(self, bytes_in: int, bytes_out: int, error: ConnectionCut | None) -> None:
        attempt = cast(Attempt, self.last_attempt)
        self.bytes_in, attempt.bytes_out = bytes_in, bytes_out
        self.finish(TUNNEL, OutcomeKind.TUNNELLED, error)

    def abandon(self, error: ConnectionCut) -> None:
        """Abandon the exchange because the client's connection has ended; the endpoint is not blamed for it. A client
        that leaves after the last event of a stream has its whole answer, so the request counts as answered."""
        attempt = self.last_attempt
        if self.state is ENDED:
            return
        if attempt is not None and error is CLIENT_LEFT and attempt.has_last_event():
            self.finish(LEFT, OutcomeKind.OK)
        else:
            self.finish(LEFT, ABANDONED, error)

    def reject(self, error: ForwardingError, kind: OutcomeKind = ABANDONED) -> None:
        """End the exchange with an error, which the client sees as an error response or as a response that breaks off;
        an attempt that is in flight has outcome `kind`."""
        attempt = self.last_attempt
        self.finish(CUT if attempt is not None and attempt.state is STREAMING else ERROR, kind, error)

    def finish(
        self, end: End, kind: OutcomeKind, error: ForwardingError | None = None, now: float = 0.0
    ) -> None:
        cluster, downstream, attempt = self.cluster, self.downstream, self.last_attempt
        cause, status, stays = error, 0, False
        if error is not None and (end is TUNNEL or error is CLIENT_LEFT):
            cause = None  # it is no error of the exchange
        if self.state is QUEUED:
            cluster.queue.leave(self)
        if self.kept is not None:
            drop_body(self, self.kept)
        self.state = ENDED
        self.count_out()
        if attempt is not None:
            is_clean = False
            if end is WHOLE:
                upstream = attempt.upstream  # with all of the body taken, where that was kept
                is_taken = self.kept is None or (upstream is not None and not upstream.unsent)
                is_clean = self.is_complete and is_taken
                status, stays = attempt.status, attempt.client_stays
            elif attempt.state is STREAMING:
                status = attempt.status
            else:
                attempt.discard_buffered()
            attempt.end(kind, cause, now, is_clean=is_clean)
        if cause is not None:
            cluster.counts.count_error(cause)
            if end is ERROR:
                status, stays = cause.status, self._send_error(cause)
        elif kind is ABANDONED:
            cluster.counts.abandoned += 1
        elif status >= 500 or (attempt is not None and end is WHOLE and attempt.has_failed):
            cluster.counts.worker_errors += 1
        if status:
            cluster.counts.responses[status] += 1
        if end is WHOLE or end is ERROR:
            downstream.exchange_ended(stays, now)
        elif end is CUT and attempt is not None:
            attempt.cut(downstream)
        if self.observers:
            for one in self.observers:
                one.on_end(self, error)
            self.observers = ()

    def _send_error(self, error: ForwardingError) -> bool:
        """Send an error response. Returns whether the connection stays."""
        request, downstream = self.request, self.downstream
        stays = request.fields.keep_alive and self.is_complete and self.cluster.process.keeps_alive
        is_head = request.method == b"HEAD"
        form = self.cluster.error_form
        downstream.write_error(ErrorAnswer(error, request.id, stays, is_head, self.own_edit(), form))
        # A body may have been received whole, and held the client, before an endpoint could take it.
        if stays and downstream.is_held:
            downstream.unhold()
        return stays

    def own_edit(self) -> BlockEdit | None:
        """Return the edit of the fields of a response that is not a worker's."""
        attempt = self.last_attempt
        endpoint = b"" if attempt is None else attempt.assignment.state.id.encode()
        edits, client = self.edits, self.downstream.client
        return None if edits is None else edits.of_own(self.request, client, self.cluster, endpoint)
