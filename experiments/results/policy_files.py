"""Files and modules of policies in a campaign: each run must use the version that the campaign began with."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from experiments.errors import BadInputError
from experiments.run_data import Run
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import RunningScenario
from policies import registry
from policies.errors import PoliciesError
from policies.loading.reference import references_in


class PolicyFile(BaseModel):
    """A file or module that policies of the campaign come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    version: str = Field(description="beginning of the SHA-256 of the file and of the modules beside it")


def policy_files(scenario: Scenario) -> tuple[PolicyFile, ...]:
    """Return the files of the scenario's policies as they are now. Raises `BadInputError`.

    A running balancer has read the files of its policies itself, so its scenario has none.
    """
    if isinstance(scenario, RunningScenario):
        return ()
    names = [name for entry in scenario.entries for name in references_in(entry.policy.model_dump())]
    try:
        sources = [registry.LIBRARY.source_of(name) for name in dict.fromkeys(names)]
    except PoliciesError as error:
        raise BadInputError(f"policies: {error}") from None
    versions = {source.path: source.version for source in sources}
    return tuple(PolicyFile(path=path, version=version) for path, version in versions.items())


def require_same_files(files: tuple[PolicyFile, ...], run: Run) -> None:
    """Check that the balancer of a run has loaded the campaign's versions. Raises `BadInputError`."""
    known = {file.path: file.version for file in files}
    for found in run.facts.status.get("policy", {}).get("files", ()):
        path, version = found["path"], found["version"]
        if version != known.get(path, version):
            raise BadInputError(
                f"{path} was changed during the campaign: version {known[path]} before, {version} now; "
                "runs of both cannot be compared, so the campaign ends here"
            )
