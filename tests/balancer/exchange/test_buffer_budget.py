"""The budget of buffering: what is kept is what bodies are charged with, and nothing grows beyond the bound."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from balancer.clients.client_usage import ByteBudget, Charge
from balancer.exchange.buffering import KeptBody
from balancer.upstream.http1.connection import UpstreamConnection
from balancer.upstream.request import RequestBody
from tests.support.example_counts import examples

_sizes = st.integers(0, 100)
_charges = st.tuples(st.just("resize"), st.integers(0, 4), _sizes)
_bounds = st.tuples(st.just("bound"), st.just(0), _sizes)


@examples(100)
@given(st.lists(st.one_of(_charges, _charges, _charges, _bounds), max_size=40))
def test_charges_add_up(steps: list[tuple[str, int, int]]) -> None:
    """Against a model of five bodies, while the bound changes: a refused charge changes nothing."""
    budget = ByteBudget()
    budget.total = 100
    charges, sizes = [Charge(budget) for _ in range(5)], [0] * 5
    for kind, number, size in steps:
        if kind == "bound":
            budget.total = size
            continue
        after = sum(sizes) - sizes[number] + size
        fits = size <= sizes[number] or after <= budget.total
        assert charges[number].resize(size) is fits
        sizes[number] = size if fits else sizes[number]
        assert [charge.size for charge in charges] == sizes
        assert budget.kept == sum(sizes)
    for charge in charges:
        assert charge.resize(0)
    assert budget.kept == 0


class WriteBuffer:
    """A transport of which `unsent` bytes are in the write buffer."""

    unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent


_acts = st.sampled_from(("add", "add", "send", "write", "drain", "update", "free"))


@examples(100)
@given(st.integers(0, 300), st.integers(0, 300), st.lists(st.tuples(_acts, st.integers(1, 100)), max_size=20))
def test_body_is_charged_as_long_as_it_is_held(most: int, retried: int, acts: list[tuple[str, int]]) -> None:
    """Whatever order: kept bytes are charged, or refused at the first that does not fit; at the end nothing is left."""
    budget, written = ByteBudget(), WriteBuffer()
    budget.total = 250
    upstream = UpstreamConnection(cast(Any, None))
    upstream.transport = cast(Any, written)
    kept = KeptBody(RequestBody(retried, False), most, budget)
    received, is_sent = b"", False
    for act, size in acts:
        if act == "add" and not is_sent:
            data = bytes([size]) * size
            did_fit, received = kept.fits, received + data
            kept.add(data)
            assert kept.fits is (did_fit and len(received) <= min(most, budget.total))
            if kept.fits:
                assert budget.kept == len(received)
        elif act == "send" and not kept.is_spent:
            assert kept.between(b"head", b"end") == b"head" + received + b"end"
            kept.sent()
            written.unsent, is_sent = len(received), True
            assert kept.is_spent is (len(received) > retried)
        elif act == "drain":
            written.unsent = max(0, written.unsent - size)
        elif act == "update":
            kept.update(upstream)
            if kept.is_spent and not written.unsent:
                assert budget.kept == 0
            elif kept.fits:
                assert budget.kept == len(received)
        elif act == "free":
            kept.free()
            assert budget.kept == 0
            return
        assert budget.kept <= budget.total
    kept.free()
    assert budget.kept == 0
