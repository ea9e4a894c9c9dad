"""Pace of prefill: seconds that an endpoint takes for a prompt, by the tokens that it has to compute.

The seconds count from when the prompt came or, if others were before it, from the last first token. One line is fitted
for all endpoints, as each may see prompts of one length only; an endpoint is so many times slower than that. What was
measured of an endpoint fades, so that one that was slow is tried again.
"""

from __future__ import annotations

from math import exp
from struct import Struct
from typing import Final

KEEP: Final = 0.99
"""Factor by which a sample's weight falls with each later one: about the last hundred count."""

USUAL_TOKENS: Final = 8000.0
"""Tokens per second that are assumed at first: as if a prompt of a second and one without tokens had been seen."""

FADE_S: Final = 30.0
"""Seconds after which a sample of one endpoint counts 1/e."""

SAME_STEP_S: Final = 0.005
"""Seconds between two first tokens that count as of one step of an engine: instants of other units are not exact."""

LEAST_SECONDS: Final = 1e-6

_four: Final = Struct("4d").unpack_from
_put_four: Final = Struct("4d").pack_into
WORD: Final = 8


class Pace:
    """Fit of seconds = `base` + `per_token` · tokens by least squares; neither is negative. `mean` is of seconds."""

    def __init__(self) -> None:
        self.base = 0.0
        self.per_token = 1.0 / USUAL_TOKENS
        self.mean = 1.0
        self._weight, self._y = 2.0, 1.0
        self._x = USUAL_TOKENS
        self._xx, self._xy = USUAL_TOKENS * USUAL_TOKENS, USUAL_TOKENS

    def learn(self, tokens: float, seconds: float) -> None:
        """Learn that a prompt of which `tokens` were to be computed took `seconds`."""
        self._weight = self._weight * KEEP + 1.0
        self._x = self._x * KEEP + tokens
        self._y = self._y * KEEP + seconds
        self._xx = self._xx * KEEP + tokens * tokens
        self._xy = self._xy * KEEP + tokens * seconds
        self.mean = max(LEAST_SECONDS, self._y / self._weight)
        spread = self._xx - self._x * self._x / self._weight
        slope = (self._xy - self._x * self._y / self._weight) / spread if spread > 1e-9 * self._xx else 0.0
        base = (self._y - slope * self._x) / self._weight
        if slope <= 0.0 or base < 0.0:
            slope, base = max(self._y, LEAST_SECONDS) / self._x, 0.0
        self.per_token, self.base = slope, base

    def seconds(self, tokens: float) -> float:
        """Return the expected seconds."""
        return self.base + self.per_token * tokens


class Span:
    """Seconds up to the first tokens of so many prompts in one step of an engine, of which the pace is not learned yet:
    other units may report a first token within it, and then it was not for these prompts alone.
    """

    def __init__(self) -> None:
        self.prompts = 0.0
        self.seconds = self.tokens = 0.0
        self.ended_at = -1e300

    def goes_on(self, now: float) -> bool:
        """Whether a first token now is of the same step."""
        return self.prompts > 0.0 and now - self.ended_at < SAME_STEP_S

    def add(self, seconds: float, tokens: float, now: float) -> None:
        """Add a prompt of which so many tokens were to be computed."""
        self.prompts += 1.0
        self.seconds += seconds
        self.tokens += tokens
        self.ended_at = now

    def has(self, instant: float) -> bool:
        """Whether a first token at this instant is within it."""
        return -self.seconds < instant - self.ended_at <= SAME_STEP_S

    def clear(self) -> None:
        """Forget it."""
        self.prompts = self.seconds = self.tokens = 0.0


class Slowness:
    """Ratio of one endpoint's prefill times to those of the fit.

    Measured over expected seconds, drawn towards 1 by as much as chance explains the difference (James and Stein): two
    standard errors are chance. Otherwise noise would lead prompts away from what is cached.
    """

    def __init__(self, numbers: memoryview[float], at: int) -> None:
        """Keep four sums in `numbers[at:]`, which other processes may share: all know what each measures."""
        self._numbers = numbers
        self._at = at
        self.refresh()

    def refresh(self) -> None:
        """Read the sums, which other processes write as well."""
        sums: tuple[float, float, float, float] = _four(self._numbers, self._at * WORD)
        self._total, self._of, self._errors, self._learned_at = sums

    def learn(self, measured: float, expected: float, now: float) -> None:
        """Learn from the seconds of one prompt."""
        kept = _kept(now - self._learned_at)
        self._total = self._total * kept + measured
        self._of = self._of * kept + expected
        error = measured - expected * self._total / self._of
        self._errors = self._errors * kept + error * error
        self._learned_at = now
        _put_four(self._numbers, self._at * WORD, self._total, self._of, self._errors, now)

    def read(self, usual: float, now: float) -> float:
        """Return the factor; `usual` is the mean of seconds, and one such prompt says that it is 1."""
        kept = _kept(now - self._learned_at)
        expected = usual + self._of * kept
        excess = (usual + self._total * kept) / expected - 1.0
        chance = 4.0 * self._errors * kept / (expected * expected)
        return 1.0 + excess - chance / excess if excess * excess > chance else 1.0


def _kept(age: float) -> float:
    """Return the weight of what was measured so many seconds ago."""
    return exp(-age / FADE_S) if age > 0.0 else 1.0
