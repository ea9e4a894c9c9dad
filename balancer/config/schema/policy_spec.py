"""The tables `policy`, `policy.canary` and `policy.shadow` of the configuration, and the policy that they describe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from balancer.config.keys import dotted
from balancer.config.positions import Place
from policies import registry
from policies.errors import BrokenPolicy
from policies.facts import Endpoint
from policies.insight.canary import Canary
from policies.insight.shadow import Shadow, Shadowed, randomness
from policies.loading.library import Library
from policies.loading.reference import label_of, labels_of, located_here
from policies.policy import Policy
from policies.routing.trial_pick import require_pick


def can_read_prompts() -> bool:
    """Return whether the extra `inference` is installed."""
    return all(map(find_spec, ("msgspec", "xxhash")))


class PlainPolicy(BaseModel):
    """A policy: its name, or a table with `name` and the policy's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(default="steelyard", description="a name from the registry or an entry point")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if not isinstance(value, str | dict | PlainPolicy):
            raise ValueError(f"must be a name, or a table with a name and options, got {value!r:.60}")
        try:
            return located_here({"name": value} if isinstance(value, str) else value)
        except BrokenPolicy as error:
            raise ValueError(str(error)) from None

    @property
    def options(self) -> dict[str, Any]:
        """Options for the policy's constructor."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """The name for logs and the terminal: of FILE.py:CLASS the class."""
        return label_of(self.name)

    @property
    def table(self) -> dict[str, Any]:
        """Name and options, as the registry takes them."""
        return {"name": self.name, **self.options}

    def alone(self, rng: Random, path: str, library: Library) -> Policy:
        """Build the policy. Raises `PoliciesError` for an unknown name or option, and for a missing extra."""
        policy = registry.make(self.name, self.options, rng, path, library)
        if getattr(policy, "reads_prompts", False) and not can_read_prompts():
            raise BrokenPolicy(
                f"'{self.label}' reads prompts and needs msgspec and xxhash, which are not installed: "
                "pip install '.[inference]' in the checkout"
            )
        return policy

    def require_pick(
        self, path: str, library: Library, endpoints: Iterable[Endpoint], region: str | None
    ) -> None:
        """Build the policy a first time and let it pick, if it has a user's code; the instance is not used again.

        Raises `PoliciesError` as `alone` does, and for a fault of the policy.
        """
        policy = self.alone(Random(0), path, library)
        if not registry.is_built_in(self.table):
            require_pick(policy, endpoints, region)


class CanarySpec(PlainPolicy):
    """The table [policy.canary]: a candidate policy that places a share of the requests."""

    share: float = Field(default=0.05, gt=0, le=0.5, description="share of requests that it routes")
    by: Literal["request", "key"] = Field(
        default="request",
        description="how requests are chosen: at random, or by key (by path where a request has no key)",
    )


class PolicySpec(PlainPolicy):
    """The policy: `policy = "name"`, or a table with `name` and the policy's own options, a canary and shadow
    policies.
    """

    canary: CanarySpec | None = Field(
        default=None, description="candidate policy that routes a share of the requests"
    )
    shadow: tuple[PlainPolicy, ...] = Field(
        default=(),
        max_length=8,
        description="policies that are evaluated for each request without routing it",
    )

    @field_validator("shadow")
    @classmethod
    def _has_names_of_its_own(cls, value: tuple[PlainPolicy, ...]) -> tuple[PlainPolicy, ...]:
        names = [each.name for each in value]
        if len({*names}) < len(names):
            raise ValueError("a policy must not be listed twice: its counts are kept under its name")
        return value

    @property
    def spec(self) -> dict[str, Any]:
        """The explicitly given keys and the name; a request body that restores the policy."""
        return {"name": self.name, **self.model_dump(mode="json", exclude_unset=True)}

    @cached_property
    def library(self) -> Library:
        """The files that the policy, its canary and its shadows name: each is read once for each specification."""
        return Library()

    def parts(self, at: Place = ("policy",)) -> dict[Place, PlainPolicy]:
        """Return the policy, its canary and its shadows by their places."""
        parts: dict[Place, PlainPolicy] = {at: self}
        if self.canary is not None:
            parts[*at, "canary"] = self.canary
        return parts | {(*at, "shadow", number): each for number, each in enumerate(self.shadow)}

    @property
    def named(self) -> Iterator[str]:
        """The references of the policy, its canary and its shadows, each before it is loaded."""
        parts = self.parts().values()
        return chain.from_iterable(registry.references_in(part.table, self.library) for part in parts)

    def require_picks(self, endpoints: Collection[Endpoint], region: str | None) -> None:
        """Let the policy, its canary and its shadows pick over these endpoints. Raises `PoliciesError`."""
        for place, part in self.parts().items():
            part.require_pick(dotted(place), self.library, endpoints, region)

    def is_same_as(self, other: PolicySpec) -> bool:
        """Whether both are the same policies with the same options, of the same versions of their files."""
        return self == other and self.library.versions == other.library.versions

    def make(self, rng: Random, before: tuple[PolicySpec, Policy] | None = None) -> Policy:
        """Build the policy with its canary and shadows. Raises `PoliciesError` for an unknown name or option.

        `before` are a specification and its policy. What stays the same in the same place is kept, with what it has
        learned; counts begin anew.
        """
        kept = [] if before is None else list(zip(before[0].identities, plain(before[1]), strict=True))
        policies: list[Policy] = []
        for (place, part), identity in zip(self.parts().items(), self.identities, strict=True):
            own = randomness(rng) if "shadow" in place else rng
            known = [policy for other, policy in kept if other == identity]
            policies += known or [part.alone(own, dotted(place), self.library)]
        policy, canary = policies[0], self.canary
        if canary is not None:
            arms = (self.label, policy), (canary.label, policies[1])
            policy = Canary(*arms, rng, share=canary.share, by_key=canary.by == "key")
        if self.shadow:
            labels = labels_of(each.name for each in self.shadow)
            policy = Shadowed(policy, list(map(Shadow, labels, policies[-len(labels) :])))
        return policy

    @cached_property
    def identities(self) -> list[Any]:
        """What made each policy of `parts` itself: its place, name and options, the versions of its files."""
        library = self.library
        return [
            (
                place[:2],
                part.table,
                [library.source_of(one) for one in registry.references_in(part.table, library)],
            )
            for place, part in self.parts().items()
        ]


def plain(policy: Policy) -> list[Policy]:
    """Return the policies of which `PolicySpec.make` has made this one, in the order of `parts`."""
    shadows = [shadow.policy for shadow in policy.shadows] if isinstance(policy, Shadowed) else []
    live = policy.live if isinstance(policy, Shadowed) else policy
    return [*([arm.policy for arm in live.arms] if isinstance(live, Canary) else [live]), *shadows]
