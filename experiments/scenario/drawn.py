"""Random scenarios by name: `random-SEED` is drawn from its seed, and always the same.

A policy that is tuned on the packaged scenarios may suit nothing else. Drawn ones separate tuning from evaluation: tune
on one range of seeds, freeze the code, and evaluate on seeds that were not used before.

Only `Random.random` is used, whose sequence is the same in every version of Python, and most numbers have three digits.
The distribution is part of the meaning of a name. It changed on 28 November 2026: figures about random scenarios that
give no later date were measured before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, exp, log
from random import Random
from typing import Any, Final, TypeVar

from experiments.errors import BadInputError
from experiments.scenario.events import ALL

PREFIX: Final = "random-"
MOST_SEED: Final = 999_999_999
MAX_SCENARIOS: Final = 1000
"""Maximum number of scenarios of a range."""

SEED: Final = re.compile(r"0|[1-9][0-9]{0,8}")
ALLOWED: Final = (
    f"SEED must be a whole number from 0 to {MOST_SEED}; only a sweep takes a range, random-1001..1200"
)

REQUESTS: Final = (10_000, 18_000)
SECONDS: Final = (10.0, 1000.0)
"""Least and greatest number of requests of a run and of seconds of its arrivals."""

SERVICES: Final = ("fixed", "exponential", "lognormal", "lognormal", "mixed")
"""Distributions of service times, as often as they are drawn."""

ARRIVALS: Final = ("poisson",) * 6 + ("mmpp", "mmpp", "burst", "surge", "ramp", "constant")
"""Arrival processes, as often as they are drawn; `surge` is a single burst."""

EVENTS: Final = (
    *(("slow",) * 3 + ("down",) * 2),
    *("pause", "pauses", "hang", "fail", "reset", "restart", "rtt", "add", "drain", "unhealthy"),
)
"""Kinds of events, as often as they are drawn; `pauses` are repeated."""

RETRIES: Final[tuple[dict[str, Any], ...]] = (
    *({},) * 9,
    *({"retries": 0}, {"retries": 1}, {"retries": 3}, {"retry": {"statuses": [500, 502, 503]}}),
)
"""Settings of retries, as often as they are drawn."""

OF_REGIONS: Final = ("slow", "pauses", "down", "restart", "rtt")
"""Kinds of events that may affect a whole region."""

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
        workers, used = round(self._scaled(2, 60)), self._within(0.15, 1.05)
        requests = self._within(*REQUESTS)
        regions, capacity, mean = self._regions(workers)
        while not SECONDS[0] <= requests / (capacity * used) <= SECONDS[1]:
            regions, capacity, mean = self._regions(workers)
        duration = rounded(requests / (capacity * used))
        home, farthest = regions[0]["rtt"], max(region["rtt"] for region in regions)
        events = self._events(regions, duration)
        return {
            "name": name,
            "question": "Which policy is best in a scenario that was drawn at random?",
            "group": "drawn at random",
            "source": f"{used:.0%} of the capacity of all workers, see docs/scenarios.md",
            "preset": "standard" if len(regions) == 1 else "regions",
            "baseline": "round-robin",
            "home_region": regions[0]["name"],
            "slo": rounded(0.02 + home + 0.5 * (farthest - home) + self._within(2, 6) * mean),
            "timeout": self._pick((5.0, 10.0)),
            "warmup": 20,
            "balancers": self._pick((1, 1, 1, 1, 1, 2, 3, 4, 6, 8, 12)),
            "staleness": rounded(self._scaled(0.05, 1.5)) if self._random() < 0.3 else 0.0,
            "balancer": self._settings(events, mean, farthest),
            "load": self._load(capacity * used, duration),
            "quick": {"duration": rounded(max(5.0, duration / 4)), "warmup": 10},
            "regions": regions,
            "events": events,
        }

    def _load(self, mean: float, duration: float) -> dict[str, Any]:
        """Arrivals with a mean of so many per second."""
        kind, times, change = self._pick(ARRIVALS), self._within(1.5, 4.0), self._within(-0.65, 0.65)
        load: dict[str, Any] = {"mode": "open", "duration": duration, "arrivals": kind}
        match kind:
            case "poisson" | "constant":
                return load | {"rate": rounded(mean)}
            case "ramp":
                return load | {"rate": rounded(mean * (1 - change)), "peak": rounded(mean * (1 + change))}
            case "surge":
                part = self._within(0.05, 0.3)
                start = rounded(duration * self._within(0.2, 0.5))
                load |= {"arrivals": "burst", "start": start, "lasts": rounded(duration * part)}
            case _:
                every = duration / ceil(max(4.0, duration / self._scaled(2.0, 60.0)))
                part = self._within(0.07, 0.33)
                load |= {"every": every, "lasts": every * part}
        rate = mean / (1 + (times - 1) * part)
        return load | {"rate": rounded(rate), "peak": rounded(rate * times)}

    def _regions(self, workers: int) -> tuple[list[dict[str, Any]], float, float]:
        """Regions, the requests/s that all their workers can serve, and the mean service time in seconds."""
        count = min(workers, self._pick((1, 1, 2, 3, 4)))
        sizes = self._sizes(workers, count)
        mean = rounded(self._scaled(0.002, 0.5))
        service = self._service(mean)
        slots = [self._slots()] * count
        if self._random() < 0.25:
            slots = [self._slots() for _ in sizes]
        rtts = self._rtts(count)
        speeds = self._pick(("equal", "equal", "two", "any"))
        idle_timeout = self._pick((None, None, None, 2.0, 5.0, 15.0, 60.0))
        setup_rtts = self._pick((1, 1, 2, 3))
        waiting = self._pick((None, None, 5, 20))
        discipline = "sharing" if self._random() < 0.1 else "fifo"
        weighted = self._pick(("none", "none", "capacity", "capacity", "slots"))
        regions, capacity = list[dict[str, Any]](), 0.0
        for number, size in enumerate(sizes):
            speed = [self._speed(speeds) for _ in range(size)]
            capacity += slots[number] * sum(speed) / mean
            region: dict[str, Any] = {
                "name": "home" if number == 0 else f"away{number}",
                "workers": size,
                "rtt": rtts[number],
                "service": service,
                "slots": slots[number],
                "setup_rtts": setup_rtts,
                "discipline": discipline,
            }
            if waiting is not None:
                region["queue"] = waiting * slots[number]
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

    def _slots(self) -> int:
        return round(self._scaled(0.8, 32))

    def _rtts(self, regions: int) -> list[float]:
        """Round trip to each region: all as likely to be near or far, or one near and the others far."""
        if self._random() < 0.6:
            rtts = [rounded(self._scaled(0.001, 0.25)) for _ in range(regions)]
            return rtts if self._random() < 0.2 else sorted(rtts)
        return [
            rounded(self._scaled(0.02, 0.25) if n else self._scaled(0.0005, 0.01)) for n in range(regions)
        ]

    def _service(self, mean: float) -> str:
        """The distribution of service times. Of `mixed`, long requests are at most 0.8 of the work, and end in 3 s."""
        kind, sigma, share = self._pick(SERVICES), self._scaled(0.3, 1.8), self._scaled(0.005, 0.15)
        text = f"{kind}:{mean * 1000:g}ms"
        if kind == "lognormal":
            return f"{text},{sigma:.2f}"
        if kind != "mixed":
            return text
        long = min(3.0, mean * self._scaled(4.0, 30.0))
        share = min(share, 0.8 * mean / long)
        short = (mean - share * long) / (1 - share)
        return f"mixed:{short * 1000:.6g}ms,{long * 1000:.6g}ms,{share:.6g}"

    def _speed(self, speeds: str) -> float:
        if speeds == "two":
            return self._pick((1.0, 1.0, 0.4))
        return rounded(self._scaled(0.3, 3.0)) if speeds == "any" else 1.0

    def _events(self, regions: Sequence[dict[str, Any]], duration: float) -> list[dict[str, Any]]:
        """Up to three events, which begin in the first 0.6 of the run, and some of which affect the same worker."""
        events, place = list[dict[str, Any]](), self._place(regions)
        for _ in range(self._pick((0, 0, 1, 1, 2, 3))):
            events.append(self._event(*place, len(regions) == 1, duration))
            place = place if self._random() < 0.15 else self._place(regions)
        return events

    def _place(self, regions: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str]:
        """A region and one of its workers."""
        region = self._pick(regions)
        return region, f"{region['name']}-{int(self._random() * region['workers'])}"

    def _event(self, region: dict[str, Any], worker: str, is_only: bool, duration: float) -> dict[str, Any]:
        kind = self._pick(EVENTS)
        target = self._pick((worker, region["name"], ALL if kind == "pauses" else worker))
        if kind not in OF_REGIONS or (is_only and kind == "down"):
            target = worker
        at = rounded(duration * self._within(0.02, 0.6))
        lasts = rounded(min(duration * 0.4, self._scaled(2.0, 60.0)))
        event: dict[str, Any] = {"at": at, "target": target, "kind": kind}
        match kind:
            case "pause":
                return event | {"value": rounded(self._scaled(0.1, 4.0))}
            case "pauses":
                value = rounded(self._scaled(0.02, 0.5))
                return event | {
                    "kind": "pause",
                    "value": value,
                    "every": rounded(value * self._within(8, 30)),
                }
            case "slow":
                event["value"] = rounded(self._scaled(1.5, 10.0))
                return event if self._random() < 0.2 else event | {"lasts": lasts}
            case "rtt":
                return event | {"lasts": lasts, "value": rounded(region["rtt"] + self._scaled(0.02, 0.3))}
            case "hang" | "fail" | "reset":
                return event | {"lasts": lasts, "value": self._pick((1.0, 0.5, 0.1, 0.05))}
            case "restart":
                event |= {"lasts": lasts, "value": rounded(min(self._scaled(1.0, 4.0), lasts / 2))}
                return event if target == worker else event | {"stagger": lasts}
            case "add":
                return event
        return event | {"lasts": lasts}

    def _settings(self, events: Sequence[dict[str, Any]], mean: float, farthest: float) -> dict[str, Any]:
        """The balancer's settings: active checks, retries; a time limit of attempts if a worker may not answer."""
        settings, interval = dict(self._pick(RETRIES)), self._pick((None, 1.0, 2.0, 5.0))
        if interval is not None:
            fast = min(2.0, interval)
            settings["health_checks"] = {"path": "/healthz", "interval": interval, "fast_interval": fast}
        if self._random() < 0.1 or any(event["kind"] == "hang" for event in events):
            usual = self._within(32, 60) * mean + 5 * farthest  # longer than a long request of `mixed`
            settings["timeouts"] = {"attempt": rounded(min(max(1.0, usual), 4.0))}
        return settings

    def _pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random() * len(items))]

    def _within(self, low: float, high: float) -> float:
        """A number from `low` to `high`, all as likely."""
        return low + (high - low) * self._random()

    def _scaled(self, low: float, high: float) -> float:
        """A number from `low` to `high` whose logarithm is uniform."""
        return exp(log(low) + (log(high) - log(low)) * self._random())


def rounded(number: float) -> float:
    """The number with three significant digits, the same on every machine."""
    return float(f"{number:.3g}")
