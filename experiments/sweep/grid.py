"""A grid: the policies, scenarios, knobs and seeds of a sweep.

A grid is frozen data, an unknown key is an error, and every error becomes one line that names the file and the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from experiments.errors import BadInputError
from experiments.platform.printable import PrintableLine, PrintableName
from experiments.scenario.drawn import single_names
from experiments.scenario.files import first_complaint, grouped, is_scenario, known_scenarios, read_toml
from experiments.scenario.scenario import Policy, require_unique
from policies import registry
from policies.loading.reference import FILE, MODULE, label_of, labels_of, located

EVERYTHING = "all"
OURS = "steelyard"
MEASURES = ("p50", "p75", "p90", "p95", "p99", "p999", "max", "mean")
"""Measures by which a catalogue can be read: seconds, deadline-mapped; less is better for all."""

POLICY_KNOB = "policy."
"""Prefix of the knobs of policies; every other knob is a key of the scenario."""


class GridTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GridPolicy(GridTable):
    """A policy of the grid. `balancer` holds balancer settings for this policy alone."""

    policy: Policy
    label: PrintableName = Field(
        default="", max_length=40, description="unique; the name of the policy if not given"
    )
    balancer: dict[str, Any] = Field(default={}, description="as in an entry of a scenario")

    @property
    def name(self) -> str:
        """Label in all tables: the given one, or the policy's name."""
        return self.label or label_of(self.policy.name)


def every_scenario(value: object) -> object:
    """Expand `scenarios = "all"` to the packaged scenarios, in the order of `experiments show`, and ranges.

    Those with inference engines are left out: other policies are meant for them.
    """
    if isinstance(value, list | tuple):
        return [single for name in value for single in singles(name)]
    if value != EVERYTHING:
        return value
    return [one.name for scenarios in grouped().values() for one in scenarios if one.inference is None]


def singles(name: object) -> list[Any]:
    """The scenarios of a range such as `random-1..20`; anything else alone. Raises `ValueError`."""
    try:
        return single_names(name) if isinstance(name, str) else [name]
    except BadInputError as error:
        raise ValueError(str(error)) from None


def listed_seeds(value: object) -> object:
    """Expand `seeds = 20` to 1 to 20."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value > MOST_SEEDS:
        raise ValueError(f"must be at most {MOST_SEEDS}, or a list of them")
    return range(1, value + 1)


def flattened(value: object) -> object:
    """Flatten nested tables: `load.rate = […]` and `"load.rate" = […]` are the same knob."""
    return dict(leaves(value)) if isinstance(value, Mapping) else value


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of every leaf in nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


MOST_SEEDS = 10_000
Seed = Annotated[int, Field(ge=0)]
Values = Annotated[tuple[Any, ...], Field(min_length=1)]
Competitor = Annotated[
    GridPolicy, BeforeValidator(lambda one: {"policy": one} if isinstance(one, str) else one)
]


def every_policy(value: object) -> object:
    """Expand `policies = "all"` to what can be made without options, and label classes of one name in different files
    by these, as `run` does."""
    if not isinstance(value, list | tuple):
        return sorted({*registry.known()} - registry.broken().keys()) if value == EVERYTHING else value
    names = dict.fromkeys(one for one in value if isinstance(one, str))
    references = [one for one in names if FILE.fullmatch(one) or MODULE.fullmatch(one)]
    labels = dict(zip(references, labels_of(references), strict=True))
    labels = {one: label for one, label in labels.items() if label != label_of(one)}
    return [
        {"policy": one, "label": labels[one]} if isinstance(one, str) and one in labels else one
        for one in value
    ]


Competitors = Annotated[tuple[Competitor, ...], BeforeValidator(every_policy)]


class Grid(GridTable):
    """The whole sweep: every scenario × every setting of the knobs × every policy × every seed is one cell."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]*$",
        max_length=64,
        description="one catalogue may hold several grids by name",
    )
    question: PrintableLine = Field(default="", description="one line that ends in a question mark")
    world: Literal["simulated"] = Field(default="simulated", description="where the cells are run")
    quick: bool = Field(default=False, description="the short version of every scenario")
    ours: str = Field(default=OURS, description="the label that the report speaks of, where it takes part")
    scenarios: Annotated[tuple[str, ...], BeforeValidator(every_scenario)] = Field(
        min_length=1,
        description='names from `experiments show`, random-SEED, random-FIRST..LAST and TOML files, or "all"',
    )
    policies: Competitors = Field(min_length=1, description='names, or tables of policy and label, or "all"')
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(listed_seeds)] = Field(
        min_length=1, description="how many, or which; eight give a verdict"
    )
    knobs: Annotated[dict[str, Values], BeforeValidator(flattened)] = Field(
        default={}, description="dotted key of the scenario, or policy.<option> -> its values"
    )

    @model_validator(mode="after")
    def names_nothing_twice(self) -> Self:
        require_unique("policies", [competitor.name for competitor in self.policies])
        require_unique("scenarios", list(self.scenarios))
        require_unique("seeds", [str(seed) for seed in self.seeds])
        for knob, values in self.knobs.items():
            require_unique(f"knobs.{knob}", [repr(value) for value in values])
        return self


def load_grid(path: Path) -> Grid:
    """Read a grid file; relative scenario paths are resolved against its directory. Raises `BadInputError`."""
    raw = read_toml(path, str(path))
    if "policies" in raw:
        raw["policies"] = located(raw["policies"], str(path.absolute().parent))
    grid = checked_grid(raw, str(path))
    unknown = next((name for name in grid.scenarios if not is_scenario(name)), None)
    if unknown is not None:
        raise BadInputError(f"{path}: scenarios: unknown {unknown!r}; known: {known_scenarios()}")
    names = [competitor.name for competitor in grid.policies]
    if {grid.ours, grid.ours.partition(", ")[0]}.isdisjoint((*names, OURS)):
        raise BadInputError(f"{path}: ours: unknown {grid.ours!r}; known: {', '.join(names)}")
    places = tuple(str(path.parent / name) if name.endswith(".toml") else name for name in grid.scenarios)
    return grid.model_copy(update={"scenarios": places})


def checked_grid(raw: Any, source: str) -> Grid:
    """Validate a grid document. Raises `BadInputError` naming the field."""
    try:
        return Grid.model_validate(raw)
    except ValidationError as error:
        raise BadInputError(f"{source}: {first_complaint(error, Grid)}") from None
