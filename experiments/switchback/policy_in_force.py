"""The policy in force at a running balancer: apply others, notice changes by other clients, restore the initial one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from experiments.errors import BadInputError, ExperimentError
from experiments.switchback.balancer import LiveBalancer
from experiments.switchback.readings import MetricsReading


class PolicyChangedExternally(ExperimentError):
    """The policy in force is not the one that was set here."""

    exit_code = 3


class PolicyFileChanged(ExperimentError):
    """A policy's file was changed, so that its periods have different policies."""

    exit_code = 2


class RestoreFailed(ExperimentError):
    """The initial policy could not be restored; manual action is needed."""

    exit_code = 3


class PolicyInForce:
    """Sets the policies of `balancer` in turns. `initial` is the policy at the start, empty before `begin`."""

    def __init__(self, balancer: LiveBalancer, now: Callable[[], float]) -> None:
        self._balancer = balancer
        self._now = now
        self._expected: dict[str, Any] = {}
        self._is_ours = True  # whether the policy in force was set here
        self.initial: dict[str, Any] = {}
        self._versions: dict[str, str] = {}

    async def begin(self, policies: Iterable[dict[str, Any]]) -> MetricsReading:
        """Read the initial policy and check that all others can be applied. Raises `ExperimentError`.

        What does not answer like a balancer gets no command.
        """
        first = await self.read()
        for policy in policies:
            await self._balancer.check(policy)
        self.initial = self._expected = first.policy
        return first

    async def read(self) -> MetricsReading:
        """Read the balancer's counters. Raises `PolicyChangedExternally` if another client set a policy, and
        `PolicyFileChanged` if a file has another version than before.
        """
        status = await self._balancer.latency()
        try:
            reading = MetricsReading.of(status, self._now())
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInputError(f"URL: it is no balancer: its answer has no latencies: {error!r}") from None
        if self._expected and reading.policy != self._expected:
            self._is_ours = False
            raise PolicyChangedExternally(
                f"another client has applied '{reading.policy['name']}'; it was left as it is, and nothing "
                "measured after it counts"
            )
        for path, version in reading.versions:
            before = self._versions.setdefault(path, version)
            if version != before:
                raise PolicyFileChanged(
                    f"{path} was changed during the evaluation: version {before} before, {version} now; "
                    "put it back, or start again"
                )
        return reading

    async def apply(self, policy: dict[str, Any]) -> None:
        """Put a policy in force."""
        await self._balancer.apply(policy)
        self._expected = policy

    async def restore(self) -> bool:
        """Put the initial policy in force; returns False if another client's was left. Raises `RestoreFailed`."""
        if not self._is_ours:
            return False
        try:
            await self._balancer.apply(self.initial)
        except ExperimentError as error:
            raise RestoreFailed(
                f"'{self.initial['name']}' could not be put in force again, '{self._expected['name']}' still is: "
                f"{error}"
            ) from None
        return True
