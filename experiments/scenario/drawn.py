"""Random scenarios by name: `random-SEED` is drawn from its seed, and always the same.

A policy that is tuned on the packaged scenarios may suit nothing else. Drawn ones separate tuning from evaluation: tune
on one range of seeds, freeze the code, and evaluate on seeds that were not used before.

Only `Random.random` is used, whose sequence is the same in every version of Python, and numbers have three digits. The
distribution is part of the meaning of a name: a change to it is another name, never another `random-SEED`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, exp, log
from random import Random
from typing import Any, Final, TypeVar

from experiments.errors import BadInputError

PREFIX: Final = "random-"
MOST_SEED: Final = 999_999_999
MAX_SCENARIOS: Final = 1000
"""Maximum number of scenarios of a range."""

SEED: Final = re.compile(r"0|[1-9][0-9]{0,8}")
ALLOWED: Final = (
    f"SEED must be a whole number from 0 to {MOST_SEED}; only a sweep takes a range, random-1001..1200"
)

REQUESTS: Final = (10_000, 18_000)
SECONDS: Final = (10.0, 300.0)
"""Least and greatest number of requests of a run and of seconds of its arrivals."""

SERVICES: Final = ("fixed:{}", "exponential:{}", "lognormal:{},0.7", "lognormal:{},1.5")
"""Distributions of service times; their squared coefficients of variation are 0, 1, 0.6 and 8.5."""

Item = TypeVar("Item")


def is_drawn(name: str) -> bool:
    """Whether the name is that of a random scenario, or is meant to be one."""
    return name.startswith(PREFIX) and not name.endswith(".toml")


def seed_of(name: str) -> int:
    """The seed in `random-SEED`. Raises `BadInputError`."""
    text = name.removeprefix(PREFIX)
    if SEED.fullmatch(text) is None:
        raise BadInputError(f"{name[:80]}: {ALLOWED}")
    return int(text)


def single_names(name: str) -> list[str]:
    """The names for which a range such as `random-1001..1200` stands, or the name itself. Raises `BadInputError`."""
    first, dots, last = name.removeprefix(PREFIX).partition("..")
    if not dots or not is_drawn(name):
        return [name]
    begin, end = seed_of(PREFIX + first), seed_of(PREFIX + last)
    if begin > end:
        raise BadInputError(f"{name}: the first seed must not be greater than the last")
    if end - begin >= MAX_SCENARIOS:
        raise BadInputError(f"{name}: a range has at most {MAX_SCENARIOS} scenarios, not {end - begin + 1}")
    return [f"{PREFIX}{seed}" for seed in range(begin, end + 1)]


def drawn(name: str) -> dict[str, Any]:
    """The document of a random scenario, as its file would hold it. Raises `BadInputError`."""
    seed = seed_of(name)
    return Draw(seed).document(name)


class Draw:
    """The draws of one scenario, in a fixed order."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"scenario {seed}").random

    def document(self, name: str) -> dict[str, Any]:
        """The whole scenario."""
        workers, used, requests = (
            round(self._scaled(2, 60)),
            self._within(0.15, 1.05),
            self._within(*REQUESTS),
        )
        regions, capacity, mean = self._regions(workers)
        while not SECONDS[0] <= requests / (capacity * used) <= SECONDS[1]:
            regions, capacity, mean = self._regions(workers)
        rate = rounded(capacity * used)
        duration = rounded(requests / rate)
        home, farthest = regions[0]["rtt"], max(region["rtt"] for region in regions)
        events = self._events(regions, duration, mean)
        return {
            "name": name,
            "question": "Which policy is best in a scenario that was drawn at random?",
            "group": "drawn at random",
            "source": f"{used:.0%} of the capacity of all workers, see docs/scenarios.md",
            "preset": "standard" if len(regions) == 1 else "regions",
            "baseline": "round-robin",
            "home_region": regions[0]["name"],
            "slo": rounded(0.02 + home + 0.5 * (farthest - home) + 6 * mean),
            "timeout": 10.0,
            "warmup": 20,
            "balancers": self._pick((1, 1, 1, 2, 3, 4, 6, 8, 12)),
            "balancer": settings(events, mean, farthest),
            "load": {"mode": "open", "rate": rate, "duration": duration},
            "quick": {"duration": rounded(max(5.0, duration / 4)), "warmup": 10},
            "regions": regions,
            "events": events,
        }

    def _regions(self, workers: int) -> tuple[list[dict[str, Any]], float, float]:
        """Regions, the requests/s that all their workers can serve, and the mean service time in seconds."""
        count = min(workers, self._pick((1, 1, 2, 3, 4)))
        sizes = self._sizes(workers, count)
        mean = rounded(self._scaled(0.002, 0.2))
        service = self._pick(SERVICES).format(f"{mean * 1000:g}ms")
        slots = [self._pick((1, 1, 2, 4, 8, 16, 32))] * count
        if self._random() < 0.25:
            slots = [self._pick((1, 2, 4, 8, 16, 32)) for _ in sizes]
        speeds = self._pick(("equal", "two", "any"))
        idle_timeout, setup_rtts = self._pick((None, None, 5.0)), self._pick((1, 1, 2, 3))
        weighted = self._pick(("none", "none", "capacity", "capacity", "slots"))
        regions, capacity = list[dict[str, Any]](), 0.0
        for number, size in enumerate(sizes):
            speed = [self._speed(speeds) for _ in range(size)]
            capacity += slots[number] * sum(speed) / mean
            region: dict[str, Any] = {
                "name": "home" if number == 0 else f"away{number}",
                "workers": size,
                "rtt": rounded(self._scaled(0.0005, 0.01) if number == 0 else self._scaled(0.02, 0.25)),
                "service": service,
                "slots": slots[number],
                "setup_rtts": setup_rtts,
            }
            if speeds != "equal":
                region["speed"] = speed
            if weighted != "none":
                parts = speed if weighted == "capacity" else [1.0] * size
                region["weights"] = [rounded(slots[number] * part) for part in parts]
            if idle_timeout is not None:
                region["idle_timeout"] = idle_timeout
            regions.append(region)
        return regions, capacity, mean

    def _sizes(self, workers: int, regions: int) -> list[int]:
        """Workers of each region, at least one."""
        parts = [self._within(0.3, 1.0) for _ in range(regions)]
        sizes = [max(1, int(workers * part / sum(parts))) for part in parts]
        sizes[0] += max(0, workers - sum(sizes))
        return sizes

    def _speed(self, speeds: str) -> float:
        if speeds == "two":
            return self._pick((1.0, 1.0, 0.4))
        return rounded(self._scaled(0.4, 2.5)) if speeds == "any" else 1.0

    def _events(
        self, regions: Sequence[dict[str, Any]], duration: float, mean: float
    ) -> list[dict[str, Any]]:
        """Up to three events, which begin in the first half of the run."""
        return [self._event(regions, duration, mean) for _ in range(self._pick((0, 0, 1, 1, 2, 3)))]

    def _event(self, regions: Sequence[dict[str, Any]], duration: float, mean: float) -> dict[str, Any]:
        region = self._pick(regions)
        worker = f"{region['name']}-{int(self._random() * region['workers'])}"
        target = self._pick((worker, worker, worker, region["name"]))
        kind = self._pick(
            (
                "slow",
                "slow",
                "pause",
                "pauses",
                "hang",
                "fail",
                "reset",
                "down",
                "restart",
                "rtt",
                "add",
                "drain",
            )
        )
        if target != worker and kind not in ("slow", "pauses", "down", "rtt"):
            target = worker
        if target == region["name"] and len(regions) == 1 and kind == "down":
            target = worker
        at = rounded(duration * self._within(0.1, 0.5))
        lasts = rounded(min(duration * 0.4, self._scaled(2.0, 30.0)))
        event: dict[str, Any] = {"at": at, "target": target, "kind": kind}
        match kind:
            case "pause":
                return event | {"value": rounded(self._scaled(0.1, 3.0))}
            case "pauses":
                value = rounded(self._scaled(0.02, 0.5))
                return event | {
                    "kind": "pause",
                    "value": value,
                    "every": rounded(value * self._within(8, 30)),
                }
            case "slow":
                return event | {"lasts": lasts, "value": rounded(self._scaled(1.5, 10.0))}
            case "rtt":
                return event | {"lasts": lasts, "value": rounded(region["rtt"] + self._scaled(0.02, 0.3))}
            case "hang" | "fail" | "reset":
                return event | {"lasts": lasts, "value": self._pick((1.0, 1.0, 0.3, 0.05))}
            case "restart":
                return event | {"lasts": lasts, "value": rounded(min(1.0, lasts / 2))}
            case "add":
                return event
        return event | {"lasts": lasts}

    def _pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random() * len(items))]

    def _within(self, low: float, high: float) -> float:
        """A number from `low` to `high`, all as likely."""
        return low + (high - low) * self._random()

    def _scaled(self, low: float, high: float) -> float:
        """A number from `low` to `high` whose logarithm is uniform."""
        return exp(log(low) + (log(high) - log(low)) * self._random())


def settings(events: Sequence[dict[str, Any]], mean: float, farthest: float) -> dict[str, Any]:
    """The balancer's settings: active checks; a time limit of attempts if a worker may not answer."""
    checks = {"health_checks": {"path": "/healthz", "interval": 2.0, "fast_interval": 1.0}}
    if all(event["kind"] != "hang" for event in events):
        return checks
    return checks | {"timeouts": {"attempt": float(ceil(max(1.0, 40 * mean + 4 * farthest)))}}


def rounded(number: float) -> float:
    """The number with three significant digits, the same on every machine."""
    return float(f"{number:.3g}")
