"""How long the setting up of a connection took, phase by phase.

Rule of this file: curl's names and meaning (curl(1), --write-out): each is counted from the beginning of the attempt to
connect, so a later phase holds the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds until the name was looked up, TCP connected, and the TLS handshake done: `appconnect` is `connect` where
    there is none."""

    namelookup: float = 0.0
    connect: float = 0.0
    appconnect: float = 0.0

    @property
    def trip(self) -> float:
        """Seconds of the TCP handshake: one trip there and back, with the wait for addresses that did not answer."""
        return self.connect - self.namelookup

    @property
    def handshake(self) -> float:
        """Seconds of the TLS handshake; 0 without one."""
        return self.appconnect - self.connect


NOTHING: Final = Phases()
"""Of what was never connected."""
