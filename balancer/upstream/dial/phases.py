"""Connect phases: duration of the name lookup, the TCP connect and the TLS handshake.

Names and meaning are curl's (curl(1), --write-out): each phase is measured from the start of the attempt, so a later
one includes the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DialTimes:
    """Seconds until the name was resolved, TCP was connected and the TLS handshake was done. Without TLS, `appconnect`
    equals `connect`."""

    namelookup: float = 0.0
    connect: float = 0.0
    appconnect: float = 0.0

    @property
    def trip(self) -> float:
        """Seconds of the TCP connect: one round trip, plus the wait for addresses that did not answer."""
        return self.connect - self.namelookup

    @property
    def handshake(self) -> float:
        """Seconds of the TLS handshake; 0 without TLS."""
        return self.appconnect - self.connect


NOTHING: Final = DialTimes()
"""Phases of a connection that was never opened."""
