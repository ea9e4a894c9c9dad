"""The exchange that the configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import SystemRandom

from balancer.config.schema.shared import SharedConfig
from balancer.rate_limits.configured import RateLimits
from balancer.sharing.exchange import Identity, ReportExchange
from balancer.sharing.shared_counters import key_of
from balancer.sharing.token_exchange import TokenExchange, secret_of
from policies.facts import Region
from policies.routing.router import Router
from policies.routing.units import OtherUnits

OF_TOKENS = "-rate-limits"
"""Channel of what rate limits have admitted, beside those of clusters, whose names begin with a letter or a digit."""


def exchange_of(
    configured: tuple[SharedConfig, Region | None],
    router: Router,
    now: Callable[[], float],
    say: Callable[[str], None],
    supervisor: str | None = None,
    cluster: str = "",
) -> ReportExchange | None:
    """Return the exchange of one cluster, None without a store.

    `configured` is the table [shared] and the home region; `supervisor` is a name that only sibling processes have in
    common.
    """
    config, home_region = configured
    if config.url is None:
        return None
    from balancer.sharing.store import Store  # only here: the import takes a tenth of a second

    sender = SystemRandom().getrandbits(63)
    identity = Identity(_unit(supervisor, sender), sender, key_of(home_region or ""))
    return ReportExchange(
        OtherUnits(router),
        Store(config, cluster).opened,
        identity,
        now,
        every=config.every,
        store=config.store,
        say=say,
    )


def token_exchange_of(
    config: SharedConfig,
    limits: RateLimits,
    now: Callable[[], float],
    say: Callable[[str], None],
    supervisor: str | None,
    *,
    applies: bool,
) -> TokenExchange | None:
    """Return the exchange of what rate limits have admitted, None without a store; see `exchange_of`."""
    if config.url is None:
        return None
    from balancer.sharing.store import Store

    limits.taken.secret = secret_of(config.url.get_secret_value())
    unit = _unit(supervisor, SystemRandom().getrandbits(63))
    return TokenExchange(limits, Store(config, OF_TOKENS).opened, unit, now, say, applies=applies)


def _unit(supervisor: str | None, otherwise: int) -> int:
    """Return the key of this unit."""
    return otherwise if supervisor is None else key_of(f"{os.uname().nodename} {supervisor}")
