"""The exchange that the configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import SystemRandom
from typing import TYPE_CHECKING

from balancer.shared.exchange import Exchange, Identity
from balancer.shared_counters import key_of
from policies.routing.units import OtherUnits

if TYPE_CHECKING:
    from balancer.config.load import Settings
    from policies.routing.router import Router


def exchange_of(
    settings: Settings,
    router: Router,
    now: Callable[[], float],
    say: Callable[[str], None],
    supervisor: str | None = None,
) -> Exchange | None:
    """Return the exchange, None without a store. `supervisor` is a name that only sibling processes have in common."""
    config = settings.shared
    if config.url is None:
        return None
    from balancer.shared.store import Store  # only here: the import takes a tenth of a second

    sender = SystemRandom().getrandbits(63)
    unit = sender if supervisor is None else key_of(f"{os.uname().nodename} {supervisor}")
    identity = Identity(unit, sender, key_of(settings.home_region or ""))
    return Exchange(
        OtherUnits(router),
        Store(config).opened,
        identity,
        now,
        every=config.every,
        store=config.store,
        say=say,
    )
