"""One request to a worker over a leased upstream: the base of attempts for clients, copies and internal requests."""

from __future__ import annotations

from abc import abstractmethod

from balancer.errors import ConnectFailed
from balancer.upstream.request import UpstreamRequest


class UpstreamAttempt:
    """A `LeaseWaiter`, and a `ResponseSink` but for the response itself; abstract. An upstream that it gets after its
    end returns to its pool."""

    upstream: UpstreamRequest | None = None  # None before it has one and after it has given it up
    is_over = False

    @abstractmethod
    def send(self, upstream: UpstreamRequest) -> None:
        """Send the request."""

    def connected(self, upstream: UpstreamRequest) -> None:
        """Send the request on the upstream that was waited for."""
        if self.is_over:
            upstream.release()
        else:
            self.send(upstream)

    @abstractmethod
    def connect_failed(self, error: ConnectFailed) -> None:
        """Report that no upstream could be opened."""

    def release(self, is_clean: bool) -> None:
        """Give up the upstream: return it to its pool if `is_clean`, else close it."""
        upstream, self.upstream = self.upstream, None
        if upstream is None:
            return
        if is_clean:
            upstream.release()
        else:
            upstream.close()

    def response_paused(self) -> None:
        """Do nothing: more of the response will follow."""

    def upstream_paused(self) -> None:
        """Do nothing: the whole request is in the write buffer, and is as small as its limit."""

    def upstream_resumed(self) -> None:
        """Do nothing: `upstream_paused` has paused nothing."""
