"""Load report of a worker, in the headers of every response.

| header | |
|---|---|
| `X-Worker-Name`, `X-Worker-Region` | the worker and its region |
| `X-Worker-In-Flight` | requests queued or in service when the response was made, itself not counted |
| `X-Worker-Service-Time` | service time of this request in seconds, without its wait in the queue; 0 if refused |
| `X-Worker-Utilization` | share of slot time in use, 0 to 1, averaged over about the last second |
"""

from __future__ import annotations

import math

from workers.service import Slots

AVERAGED_OVER = 1.0  # seconds; gRPC's and Envoy's load reports are per second too


class LoadReport:
    """Counts requests and reads the slots. `now` in seconds, from the same clock as the slots'."""

    def __init__(self, name: str, region: str, slots: Slots, now: float) -> None:
        self._identity = {"X-Worker-Name": name, "X-Worker-Region": region}
        self._slots = slots
        self._utilization = 0.0
        self._read_at = now
        self._busy_seconds = 0.0
        self.in_flight = 0
        self.served = 0

    def utilization(self, now: float) -> float:
        """Return the exponentially weighted share of slot time in use, exact for any spacing of the readings."""
        elapsed = now - self._read_at
        if elapsed > 0:
            busy_seconds = self._slots.busy_seconds(now)
            share = (busy_seconds - self._busy_seconds) / (elapsed * self._slots.count)
            self._utilization += (1 - math.exp(-elapsed / AVERAGED_OVER)) * (share - self._utilization)
            self._read_at, self._busy_seconds = now, busy_seconds
        return self._utilization

    def standing(self, now: float) -> dict[str, str]:
        """Return the report for a health check: `X-Worker-In-Flight` counts all requests, as it is not one."""
        return {
            **self._identity,
            "X-Worker-In-Flight": str(self.in_flight),
            "X-Worker-Utilization": f"{self.utilization(now):.4f}",
        }

    def headers(self, now: float, service_time: float = 0.0) -> dict[str, str]:
        """Return the report for the response to a counted request."""
        return {
            **self._identity,
            "X-Worker-In-Flight": str(self.in_flight - 1),
            "X-Worker-Service-Time": f"{service_time:.6f}",
            "X-Worker-Utilization": f"{self.utilization(now):.4f}",
        }
