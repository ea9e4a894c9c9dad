"""Two attempts at one request, until the first of them answers.

The first response head wins, and nothing of the other attempt reaches the client. While both run, each answers to a
`HedgedAttempt` of its own; then the exchange listens to the one that is left.

The loser runs on unheard. Closing its connection would not stop its worker, which hears of that when it writes, if
ever; it would only hide that somebody is slow: no latency would be learned, and the endpoint would seem to have nothing
to do, which attracts requests. So it stays in flight until its own first byte, and what it took is what is learned. A
worker that hangs is charged a timeout, as it would be without a race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from balancer.errors import ResponseTimeout, UpstreamError
from balancer.exchange.attempt import Attempt
from balancer.http1.response_head import Response
from balancer.upstream.connection import ResponseSink
from policies.routing.facts import OutcomeKind

if TYPE_CHECKING:
    from balancer.proxy import Proxy


class HedgedExchange(ResponseSink, Protocol):
    """The exchange that two attempts are for."""

    def continue_with(self, attempt: Attempt) -> None: ...


class HedgeRace:
    """An exchange's attempts while there are two."""

    def __init__(self, proxy: Proxy, exchange: HedgedExchange, first: Attempt, second: Attempt) -> None:
        self.proxy = proxy
        self._exchange = exchange
        self._first = HedgedAttempt(self, first)
        self._second = HedgedAttempt(self, second)
        if first.upstream is not None:
            first.upstream.hand_over(self._first)

    def runner(self, attempt: Attempt) -> HedgedAttempt:
        """Whom the attempt's response is for."""
        return self._first if self._first.attempt is attempt else self._second

    def _other(self, runner: HedgedAttempt) -> HedgedAttempt:
        return self._second if runner is self._first else self._first

    def answered(self, runner: HedgedAttempt, status: int, *, is_whole: bool) -> HedgedExchange | None:
        """A head has come: returns whom it is for, if it has won. A refusal does not win: the other may do better."""
        if status in self.proxy.retries.statuses:
            runner.end(OutcomeKind.ERROR_STATUS, status, is_clean=is_whole)
            self._continue_with(self._other(runner))
            return None
        self._other(runner).lose()
        if runner is self._second:
            self.proxy.counts.hedges_won += 1
        return self._decided(runner)

    def failed(self, runner: HedgedAttempt, error: UpstreamError) -> None:
        """The other has to do it alone."""
        runner.end(error.outcome, None, is_clean=False)
        self._continue_with(self._other(runner))

    def _continue_with(self, runner: HedgedAttempt) -> None:
        exchange = self._decided(runner)
        if runner.attempt.upstream is not None:
            runner.attempt.upstream.hand_over(exchange)

    def _decided(self, runner: HedgedAttempt) -> HedgedExchange:
        """Nobody refers to the race any more: it leaves no cycle behind."""
        runner.race = None
        self._exchange.continue_with(runner.attempt)
        return self._exchange

    def end_other(self, attempt: Attempt, kind: OutcomeKind) -> None:
        """The request is over, or has had its time, with no answer: so ends the one that is not `attempt`."""
        runner = self.runner(attempt)
        runner.race = None
        self._other(runner).end(kind, None, is_clean=False)


class HedgedAttempt:
    """A `ResponseSink`: one of two attempts, and, once it has lost, the one who sees it to its end."""

    def __init__(self, race: HedgeRace, attempt: Attempt) -> None:
        self._proxy = race.proxy
        self.race: HedgeRace | None = race
        self.attempt = attempt

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        if self.race is None:
            self._learn(response.status, is_clean=True)
            return
        exchange = self.race.answered(self, response.status, is_whole=True)
        if exchange is not None:
            exchange.response_whole(response, body)

    def response_started(self, response: Response) -> None:
        upstream = self.attempt.upstream
        if self.race is None:
            if response.status >= 200:
                self._learn(response.status, is_clean=False)
            return
        exchange = self.race.answered(self, response.status, is_whole=False)
        if exchange is not None and upstream is not None:
            upstream.hand_over(exchange)
            exchange.response_started(response)

    def response_body(self, data: bytes) -> None:
        """Nobody comes so far as a runner."""

    def response_paused(self) -> None:
        """Nobody comes so far as a runner."""

    def response_ended(self, trailers: bytes) -> None:
        """Nobody comes so far as a runner."""

    def response_failed(self, error: UpstreamError) -> None:
        if self.race is None:
            self.end(error.outcome, None, is_clean=False)
        else:
            self.race.failed(self, error)

    def upstream_paused(self) -> None:
        """The request is whole, and as small as what is kept: the transport holds it."""

    def upstream_resumed(self) -> None:
        """It went out."""

    # --- after the race

    def lose(self) -> None:
        """The other was first. Where nothing was sent, there is nothing to wait for."""
        self.race = None
        self.attempt.exchange = None
        hedges = self._proxy.hedges
        if self.attempt.upstream is None or hedges is None:  # None: a reload has turned them off
            self.end(OutcomeKind.ABANDONED, None, is_clean=False)
        else:
            hedges.losers[self] = None

    def check(self, now: float) -> None:
        """The sweep: a loser has the time that anybody has."""
        if now - self.attempt.sent_at > self._proxy.timeouts.first_byte:
            self.end(ResponseTimeout.outcome, None, is_clean=False)

    def _learn(self, status: int, *, is_clean: bool) -> None:
        """Its head has come, and a body that is whole or is not waited for."""
        self.attempt.first_byte_at = self._proxy.now()
        self.end(OutcomeKind.OK if status < 500 else OutcomeKind.ERROR_STATUS, status, is_clean=is_clean)

    def end(self, kind: OutcomeKind, status: int | None, *, is_clean: bool) -> None:
        """It is over."""
        self.race = None
        if self._proxy.hedges is not None:
            self._proxy.hedges.losers.pop(self, None)
        self.attempt.release(is_clean)
        self.attempt.settle(self._proxy.router, kind, status, self._proxy.now())
