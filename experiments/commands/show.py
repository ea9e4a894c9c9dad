"""The command `experiments show`: the scenarios, or what a scenario, a result set or a catalogue holds."""

from __future__ import annotations

from difflib import get_close_matches
from inspect import Parameter
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from experiments.commands.options import GRID, MEASURE, require_none
from experiments.errors import BadInputError
from experiments.scenario.drawn import is_drawn
from experiments.scenario.events import Event
from experiments.scenario.files import DEFAULT, grouped, is_scenario, known_scenarios, load_scenario, packaged
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Region, Scenario
from experiments.scenario.supported import complaints
from policies import registry
from policies.errors import PoliciesError
from policies.loading.reference import FILE, MODULE

EPILOG = """\b
Examples:
  experiments show                              the scenarios that come with the package
  experiments show regions                      a packaged scenario, or a TOML file
  experiments show random-1                     the scenario drawn at random from seed 1
  experiments show c3                           a policy and its options; also FILE.py:CLASS or MODULE:CLASS
  experiments show results/first                a results directory, without drawing its report
  experiments show results/first.sqlite         every policy under every scenario of a sweep, and why cells failed
  experiments show results/first.sqlite --measure p50
"""


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[SCENARIO|POLICY|RESULTS|CATALOGUE]", required=False)
@GRID
@MEASURE
def show(what: str | None, grid: str | None, measure: str | None) -> None:
    """Show what a scenario, a policy, a results directory or the catalogue of a sweep holds; writes nothing.

    Without a name, show the scenarios by heading, each with its question.

    A name is a packaged or random scenario, a policy, or a directory below results/. A file that ends in .toml is a
    scenario, any other file is a catalogue. --measure adds the ratio of every policy to the best one of each scenario.
    """
    from experiments.platform.terminal import console_here

    path, below = Path(what or ""), Path("results") / (what or "")
    if not path.exists() and below.exists():
        path = below
    names_scenario = what is not None and is_scenario(what) and not (is_drawn(what) and path.exists())
    is_name = what in registry.known() or any(kind.fullmatch(str(what)) for kind in (FILE, MODULE))
    names_policy = is_name and not names_scenario and not path.exists()
    if not (names_scenario or names_policy or path.is_dir()):
        show_catalogue(path, grid, measure, console_here())
        return
    require_none({"grid": grid, "measure": measure}, "only for the catalogue of a sweep")
    if what is None:
        list_scenarios()
    elif names_policy:
        show_policy(what, console_here())
    elif names_scenario:
        scenario = load_scenario(what)
        overridden(scenario, Overrides())  # refuses what `run` would refuse
        show_scenario(scenario, console_here())
    else:
        show_results(path, console_here())


def list_scenarios() -> None:
    width = max(map(len, packaged()))
    for group, scenarios in grouped().items():
        click.echo(f"{group}")
        for scenario in scenarios:
            mark = " (default)" if scenario.name == DEFAULT else ""
            mark += " (simulated only)" if any(complaints(scenario)) else ""
            click.echo(f"  {scenario.name:<{width}}  {scenario.question}{mark}")
    click.echo("drawn at random")
    click.echo(
        f"  {'random-SEED':<{width}}  Which policy is best in a scenario that SEED, a number, decides?"
    )


def show_policy(name: str, console: Console) -> None:
    """Print a policy: its description, its options with their defaults, and the parts of its cost, if it names them."""
    try:
        factory = registry.find(name)
        options, meanings = registry.options_of(factory), registry.meanings_of(factory)
        bounds = {name: " and ".join(map(str, found)) for name, found in registry.bounds_of(factory).items()}
    except PoliciesError as error:  # of a plug-in that cannot be loaded
        raise BadInputError(str(error)) from None
    console.print(Text(f"{name}: {registry.description_of(name)}", style="bold"))
    facts = [
        (key, "; ".join(filter(None, (default_in_words(one), meanings.get(key), bounds.get(key)))))
        for key, one in options.items()
    ]
    if facts:
        print_facts(facts, console)
    if parts := getattr(factory, "cost_parts", None):
        console.print(Text("cost of an endpoint, in seconds, the sum of:"))
        print_facts([*parts.items()], console)
    if name in registry.TABLE:
        console.print(Text("See docs/policies.md."))


def default_in_words(option: Parameter) -> str:
    """Description such as `2 by default`; a policy by its name."""
    if option.default is option.empty:
        return "needed"
    names = (name for name, factory in registry.TABLE.items() if factory is option.default)
    return f"{next(names, repr(option.default))} by default"


def show_scenario(scenario: Scenario, console: Console) -> None:
    """Print a scenario: question, load, regions, events, entries, thresholds."""
    facts = [
        ("source", scenario.source),
        ("simulated only", "; ".join(complaints(scenario))),
        ("load", scenario.load.in_words),
        ("blocks, seed", f"{scenario.blocks}, {scenario.seed}"),
        ("ranked by", f"{scenario.measure}, compared with {scenario.baseline}"),
        ("slo, timeout", f"{scenario.slo:g} s, {scenario.timeout:g} s"),
        ("balancers", str(scenario.balancers) if scenario.balancers > 1 else ""),
        ("balancer", settings_in_words(scenario.balancer)),
        ("inference", settings_in_words(dict(scenario.inference or ()))),
        *(("region", region_in_words(region, scenario)) for region in scenario.regions),
        *(("event", event_in_words(event)) for event in scenario.events),
        *(("entry", entry_in_words(scenario, entry.label)) for entry in scenario.entries),
        *(("threshold", threshold) for threshold in scenario.thresholds),
    ]
    console.print(Text(f"{scenario.name}: {scenario.question}", style="bold"))
    print_facts(facts, console)


def region_in_words(region: Region, scenario: Scenario) -> str:
    """Description such as `emea (home): 2 workers, round trip 10 ms, service 19-21ms, 1 slot`."""
    mark = " (home)" if region.name == scenario.home_region else ""
    if scenario.inference:
        return f"{region.name}{mark}: {region.workers} engines, round trip {region.rtt * 1e3:g} ms"
    workers, slots = (
        f"{count} {what}{'s' * (count != 1)}"
        for count, what in ((region.workers, "worker"), (region.slots, "slot"))
    )
    return f"{region.name}{mark}: {workers}, round trip {region.rtt * 1e3:g} ms, service {region.service}, {slots}"


def event_in_words(event: Event) -> str:
    """Description such as `slow at 10 s for 5 s, value 3: emea-0`."""
    lasts = "" if event.lasts is None else f" for {event.lasts:g} s"
    value = "" if event.value is None else f", value {event.value:g}"
    every = "" if event.every is None else f", every {event.every:g} s"
    stagger = f", {event.stagger:g} s apart" if event.stagger else ""
    return f"{event.kind} at {event.at:g} s{lasts}{value}{every}{stagger}: {event.target}"


def entry_in_words(scenario: Scenario, label: str) -> str:
    """Description of an entry: label, policy with options, batch, balancer settings, A/A control."""
    entry = scenario.entry(label)
    options = {key: value for key, value in entry.policy.model_dump().items() if key != "name"}
    parts = [
        entry.policy.name if options or entry.policy.name != label else "",
        settings_in_words(options),
        f"batch {entry.batch}" if entry.batch else "",
        settings_in_words(entry.balancer),
        f"A/A control of {entry.repeat_of}" if entry.repeat_of else "",
    ]
    words = ", ".join(part for part in parts if part)
    return f"{label}: {words}" if words else label


def settings_in_words(settings: dict[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def print_facts(facts: list[tuple[str, str]], console: Console) -> None:
    """Print one line for each fact that has a value."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        if value:
            console.print(
                Text.assemble((f"{name:<{width}}  ", "dim"), " ".join(value.split())), soft_wrap=True
            )


def show_results(directory: Path, console: Console) -> None:
    """Print the facts and the main results of a results directory or of a load curve."""
    from experiments.capacity.curve import is_curve, read_curve
    from experiments.capacity.curve_page import print_curve
    from experiments.commands.session import print_summary
    from experiments.results.directory import load_results
    from experiments.verdict.summary import summarise

    if is_curve(directory):
        print_curve(read_curve(directory), console)
        return
    results = load_results(directory)
    campaign = results.campaign
    console.print(Text(f"{campaign.scenario.name}: {campaign.scenario.question}", style="bold"))
    facts = [
        ("command", campaign.command),
        ("begun", f"{campaign.started_at}, {campaign.world}"),
        ("machine", campaign.machine),
        ("versions", ", ".join(f"{name} {version}" for name, version in campaign.versions.items())),
        *(("policy file", f"{file.path}, version {file.version}") for file in campaign.policy_files),
        ("runs", f"{len(results.runs)} of {len(campaign.plan)}"),
    ]
    print_facts(facts, console)
    print_summary(summarise(results), console)


def show_catalogue(file: Path, grid: str | None, measure: str | None, console: Console) -> None:
    """Print the grids of a catalogue, every policy under every scenario of one, and the reasons of failed cells."""
    from experiments.report.tables import whole_table
    from experiments.sweep.catalogue import chosen_grid, to_read
    from experiments.sweep.matrix import matrix_of
    from experiments.sweep.sentences import distance_table, overview_table
    from experiments.sweep.tables import failure_table, grid_table, group_table, matrix_table

    if not file.exists() and not file.suffix:
        near = get_close_matches(str(file), (*packaged(), *registry.known()), 1)
        known = f"did you mean {near[0]}?" if near else f"scenarios: {known_scenarios()}"
        raise BadInputError(f"{file}: no such scenario, policy, results directory or catalogue; {known}")
    with to_read(file) as opened:
        facts = chosen_grid(opened, grid)
        grids = [facts] if grid else opened.grids()
        rows = opened.rows(facts.grid.name)
    matrix = None if measure is None else matrix_of(rows, measure)
    ratios = () if matrix is None else (overview_table(matrix), distance_table(matrix), matrix_table(matrix))
    for table in (grid_table(grids), group_table(rows), *ratios, failure_table(rows)):
        if table.rows:
            console.print(whole_table(table))
