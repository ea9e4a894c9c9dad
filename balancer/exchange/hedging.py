"""Hedged attempts: two attempts at one request, until the first response.

The first final response head wins; of the other attempt only earlier interim responses reach the client. While both
run, the response of each goes to its `HedgedAttempt`; then the remaining attempt receives its response itself.

The losing attempt runs on. Closing its connection would not stop the worker, which notices only when it writes, if at
all. It would also hide that the endpoint is slow: no latency would be measured, and the endpoint would seem idle and
attract requests. So the attempt counts as in flight until its first byte, and its latency is recorded. A worker that
hangs is charged with a timeout, as without hedging.
"""

from __future__ import annotations

from balancer.errors import ResponseTimeout, UpstreamError
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange_state import ExchangeState, Race
from balancer.http.h1.response_head import Response
from balancer.upstream.request import ResponseSink
from policies.errors import Overloaded
from policies.facts import OutcomeKind, RequestFacts, kind_of_answer


def _may_hedge(exchange: ExchangeState, late: Attempt) -> bool:
    """Return whether a request may be hedged: sent once, complete, repeatable, in time, no final response begun."""
    downstream, kept = exchange.downstream, exchange.body_buffer
    is_sent = exchange.is_complete and not downstream.is_held and downstream.pending_upgrade is None
    is_repeatable = kept is None or kept.may_be_sent_twice
    is_awaited = exchange.last_attempt is late and not downstream.is_write_paused
    return is_sent and is_repeatable and is_awaited and exchange.attempts == 1 and not exchange.is_late


def hedge(exchange: ExchangeState, late: Attempt) -> None:
    """Start a hedged attempt at another endpoint, if one is allowed; the first response wins."""
    cluster, hedges = exchange.cluster, exchange.cluster.hedges
    if hedges is None or not _may_hedge(exchange, late):
        return
    router, hedging = cluster.router, hedges.hedging
    others = hedging.others(late.assignment.state, router.available)
    if not others or not router.has_room or cluster.pools.is_full or not hedging.take(cluster.now()):
        return
    wanted = {state.id for state in others}
    avoided = frozenset(state.id for state in router.available if state.id not in wanted)
    facts = late.assignment.facts
    number = facts.attempt + 1
    try:
        assignment = router.route(
            RequestFacts(facts.method, facts.path, facts.region, facts.key, number, avoided, facts.prompt)
        )
    except Overloaded:
        return
    second = exchange.new_attempt(assignment)
    exchange.hedged(HedgeRace(exchange, late, second), second)
    cluster.counts.hedged += 1
    second.lease(cluster.pools.by_id[assignment.state.id], is_idempotent=True)


class HedgeRace(Race):
    """The two attempts of a hedged exchange."""

    def __init__(self, exchange: ExchangeState, first: Attempt, second: Attempt) -> None:
        self.cluster = exchange.cluster
        self._exchange = exchange
        self._first = HedgedAttempt(self, first)
        self._second = HedgedAttempt(self, second)
        if first.upstream is not None:
            first.upstream.hand_over(self._first)

    def runner(self, attempt: Attempt) -> HedgedAttempt:
        return self._first if self._first.attempt is attempt else self._second

    def _other(self, runner: HedgedAttempt) -> HedgedAttempt:
        return self._second if runner is self._first else self._first

    def answered(self, runner: HedgedAttempt, response: Response, *, is_whole: bool) -> bool:
        """Handle the first response head. Returns whether this attempt wins.

        A retryable status does not win: the other attempt continues alone.
        """
        status = response.status
        if runner.attempt.is_refused(response) or status in self.cluster.retries.config.statuses:
            runner.attempt.status = status
            self._continue_with(self._other(runner))
            runner.end(OutcomeKind.ERROR_STATUS, is_clean=is_whole)
            return False
        self._other(runner).lose()
        if runner is self._second:
            self.cluster.counts.hedges_won += 1
        self._decide(runner)
        return True

    def failed(self, attempt: Attempt, error: UpstreamError) -> None:
        runner = self.runner(attempt)
        self._continue_with(self._other(runner))
        runner.end(error.outcome, error)

    def _continue_with(self, runner: HedgedAttempt) -> None:
        self._decide(runner)
        if runner.attempt.upstream is not None:
            runner.attempt.upstream.hand_over(runner.attempt)

    def _decide(self, runner: HedgedAttempt) -> None:
        """End hedging. The attempt drops its reference to the `HedgeRace`, so that no cycle is left."""
        runner.race = None
        self._exchange.continue_with(runner.attempt)

    def end_other(self, attempt: Attempt, kind: OutcomeKind) -> None:
        runner = self.runner(attempt)
        runner.race = None
        self._other(runner).end(kind)


class HedgedAttempt(ResponseSink):
    """A `ResponseSink` for one of two attempts; a losing attempt keeps it until its end."""

    def __init__(self, race: HedgeRace, attempt: Attempt) -> None:
        self._cluster = race.cluster
        self.race: HedgeRace | None = race
        self.attempt = attempt

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        if self.race is None:
            self._learn(response, is_clean=True)
        elif self.race.answered(self, response, is_whole=True):
            self.attempt.response_whole(response, body)

    def response_started(self, response: Response) -> None:
        upstream = self.attempt.upstream
        if response.status < 200:
            if self.race is not None:
                self.attempt.response_started(response)
        elif self.race is None:
            self._learn(response, is_clean=False)
        elif self.race.answered(self, response, is_whole=False) and upstream is not None:
            upstream.hand_over(self.attempt)
            self.attempt.response_started(response)

    # Not called, because the response is handed over or dropped at its head.
    def response_body(self, data: bytes) -> None: ...
    def response_ended(self, trailers: bytes) -> None: ...

    def response_failed(self, error: UpstreamError) -> None:
        if self.race is None:
            self.end(error.outcome, error)
        else:
            self.race.failed(self.attempt, error)

    # --- after hedging

    def lose(self) -> None:
        """Mark this attempt as the loser. It ends now if it was not sent; otherwise it runs on for its latency."""
        self.race = None
        self.attempt.exchange = None
        self.attempt.has_lost = True
        hedges = self._cluster.hedges
        if self.attempt.upstream is None or hedges is None:  # None if a reload has turned hedging off
            self.end(OutcomeKind.ABANDONED)
        else:
            hedges.losers[self] = None

    def check(self, now: float) -> None:
        """Enforce the first-byte timeout on a losing attempt; called by the sweep."""
        if now - self.attempt.sent_at > self._cluster.timeouts.first_byte:
            self.end(ResponseTimeout.outcome)

    def _learn(self, response: Response, *, is_clean: bool) -> None:
        """Settle a losing attempt at its response head; the body is not awaited."""
        self.attempt.is_refused(response)
        self.attempt.first_byte_at = self._cluster.now()
        self.attempt.status = response.status
        self.end(kind_of_answer(response.status), is_clean=is_clean)

    def end(self, kind: OutcomeKind, error: UpstreamError | None = None, *, is_clean: bool = False) -> None:
        """Release the connection and settle the attempt."""
        self.race = None
        if self._cluster.hedges is not None:
            self._cluster.hedges.losers.pop(self, None)
        self.attempt.end(kind, error, is_clean=is_clean)
