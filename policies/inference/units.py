"""Prompts of other units: what each reports of tokens and prefixes that it has sent, and applies of others' reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.endpoint.state import EndpointState
from policies.inference.news import PrefixNews
from policies.inference.tokens import EndpointTokens, TokenAccounts
from policies.prompts import NOT_ARRIVED, SENT, PromptReport, SentTokens

RECENT_S: Final = 2.0
"""Seconds for which a report has the last first token at an endpoint without prompts."""

REPORTED_WITHIN_S: Final = 0.1
"""Seconds after which others have reported their first tokens."""


class UnitPrompts:
    """The hooks `report_prompts` and `hear_prompts` of a policy with these accounts."""

    def __init__(self, accounts: TokenAccounts) -> None:
        self._accounts = accounts

    def report(self, members: Mapping[int, EndpointState], is_whole: bool, now: float) -> PromptReport | None:
        """Return what others should know of these endpoints, None if nothing has changed and not `is_whole`."""
        accounts = self._accounts
        if accounts.news is None:
            accounts.news = PrefixNews()
        if not accounts.has_changed and not is_whole:
            return None
        tokens: dict[int, SentTokens] = {}
        for key, state in members.items():
            account = accounts.account(state, now)
            if account.unanswered:
                accounts.update(account, now)
            if now - account.span.ended_at > REPORTED_WITHIN_S:
                accounts.learn_pace(account, now)
            if account.attempts or now - account.computed_at < RECENT_S:
                tokens[key] = SentTokens(
                    round(account.own_waiting),
                    len(account.unanswered),
                    round(account.own_resident),
                    len(account.attempts),
                    account.place.capacity,
                    now - account.computed_at,
                )
        accounts.has_changed = False
        return PromptReport(tokens, accounts.news.take(members))

    def hear(
        self, members: Mapping[int, EndpointState], report: PromptReport, age: float, now: float
    ) -> None:
        """Apply another unit's report of these endpoints; the sums of tokens are in `state.units.tokens`."""
        for key, told in report.tokens.items():
            if (state := members.get(key)) is not None:
                account = self._accounts.account(state, now)
                self._hear_tokens(account, told, now - age - told.computed_ago)
        for key, kind, blocks in report.prefixes:
            if (state := members.get(key)) is not None:
                self._hear_prefix(state, kind, list(blocks), now)

    def _hear_tokens(self, account: EndpointTokens, told: SentTokens, computed_at: float) -> None:
        index, place = self._accounts.index, account.place
        index.refresh(place)
        if place.capacity == 0.0 and told.capacity >= 1.0:
            index.assume(place, told.capacity)
        if account.span.has(computed_at):
            account.span.clear()
        if computed_at > place.computed_at:
            index.compute(place, computed_at)

    def _hear_prefix(self, state: EndpointState, kind: int, blocks: list[int], now: float) -> None:
        accounts = self._accounts
        if accounts.is_shared and state.part > 0:
            return  # of the processes that share the index, one applies it
        if kind == SENT:
            accounts.index.send(blocks, accounts.account(state, now).place)
        elif kind == NOT_ARRIVED:
            accounts.index.forget(blocks, accounts.account(state, now).place)
        else:
            accounts.put_key(state, blocks[0])
