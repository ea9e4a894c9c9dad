"""Test a policy against the contract: python -m policies.contract FILE.py:CLASS

Exit code 0 if it keeps all rules, 1 if it breaks one, 2 if the policy cannot be made.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NoReturn

from policies import contract, registry
from policies.clock import MonotonicClock
from policies.contract import ContractBroken, Trial, endpoints, spread
from policies.errors import PoliciesError
from policies.loading.reference import label_of
from policies.policy import PolicyMaker
from policies.routing.router import TIME_BUDGET

EXAMPLES = """\
Examples:
  python -m policies.contract my_policy.py:Tempered
  python -m policies.contract '{"name": "my_policy.py:Tempered", "sharpness": 3}'
  python -m policies.contract round-robin

Exit codes: 0 it keeps all rules, 1 it breaks one, 2 it cannot be made.
"""

WIDTH = 32
PICKS = 2000
SIZES = (6, 100)


class Parser(ArgumentParser):
    """Parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def main(arguments: list[str] | None = None) -> int:
    """Test the policy that the command line names, print a row per rule, and return the exit code."""
    parser = Parser(
        prog="python -m policies.contract",
        description="Test a policy against the rules that every policy must keep, in virtual time.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "policy",
        metavar="NAME|JSON",
        help="a name, FILE.py:CLASS, MODULE:CLASS, or a table of name and options",
    )
    spec = spec_in(parser.parse_args(arguments).policy)

    def make(rng: Random) -> Any:
        return registry.from_spec(spec, rng)

    broken = 0
    try:
        make(Random(0))
        print(title(spec), flush=True)
        broken = sum(not tested(rule, make) for rule in contract.RULES)
        print("\nMeasured, without a bound")
        for what, value in measured(make):
            print(f"  {what:<{WIDTH}} {value}", flush=True)
    except ContractBroken as error:
        print(f"  nothing: {error}")
    except PoliciesError as error:
        fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # a reader has left, such as `head`
        sys.stdout = None  # the interpreter would write again at its end
        return 1
    number = len(contract.RULES)
    print(f"\nIt breaks {broken} of {number} rules." if broken else f"\nIt keeps all {number} rules.")
    return 1 if broken else 0


def fail(message: str) -> NoReturn:
    """Print an error as one line on stderr and exit with code 2."""
    print("policies.contract:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def spec_in(text: str) -> str | Mapping[str, Any]:
    """Parse the policy of the command line; what is no JSON object is a name."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        spec: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        fail(f"{text[:60]!r} is not JSON: {error}")
    return spec


def title(spec: str | Mapping[str, Any]) -> str:
    """Return the policy's name, and path and version of its file."""
    name = spec if isinstance(spec, str) else str(spec["name"])
    files = ", ".join(f"{path}, version {version}" for path, version in registry.LIBRARY.versions.items())
    return f"{label_of(name)} ({files})" if files else label_of(name)


def tested(rule: Any, make: PolicyMaker) -> bool:
    """Test one rule, print its row, and return whether it is kept."""
    name = rule.__name__.replace("_", " ")
    try:
        rule(make)
    except ContractBroken as error:
        print(f"  {name:<{WIDTH}} BROKEN: {error}", flush=True)
        return False
    print(f"  {name:<{WIDTH}} kept", flush=True)
    return True


def measured(make: PolicyMaker) -> Iterator[tuple[str, str]]:
    """Yield how the policy distributes requests, and what a pick takes."""
    yield "busiest of six equals", f"{spread.imbalance(make):.3f} × its fair share"
    yield "weights 1 : 2 : 3", f"a share is {spread.weight_error(make):.3f} off at most"
    yield "fullest of 100 equals", f"{spread.fullest(make):.1f} of 1000 requests that wait"
    for size in SIZES:
        micros = 1e6 * seconds_per_pick(make, size)
        yield f"a pick among {size}", f"{micros:.1f} µs; the limit is {TIME_BUDGET * 1e6:.0f} µs"


def seconds_per_pick(make: PolicyMaker, size: int) -> float:
    """Return the mean duration of routing a request among `size` endpoints, on this machine."""
    trial, clock = Trial(make, endpoints(*[1.0] * size)), MonotonicClock()
    began = clock.now()
    for _ in range(PICKS):
        trial.send()
    return (clock.now() - began) / PICKS


if __name__ == "__main__":
    sys.exit(main())
