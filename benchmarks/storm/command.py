"""`python -m benchmarks storm`: two minutes of worker faults under steady load.

Only parses options, builds the plan and prints; invalid input is refused before any process starts.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from benchmarks.harness import peers
from benchmarks.harness.options import cores_for, generator_core, known_policies, names_in
from benchmarks.harness.session import exit_code, run_in_folder
from benchmarks.harness.verdicts import Verdict, print_verdicts
from benchmarks.storm.figures import ENOUGH, Figures, figures_of, seconds, success, verdicts
from benchmarks.storm.plan import QUICK, Pace, schedule
from benchmarks.storm.proxies import chosen, ours
from benchmarks.storm.runs import Plan, Storm, run_plan
from benchmarks.storm.table import faults_table_of, table_of
from experiments.build import describe_build
from experiments.errors import BadInputError
from experiments.terminal import (
    console_here,
    require_writable,
    write_json,
)

EPILOG = """\b
Examples:
  python -m benchmarks storm                                 Steelyard alone, about two and a half minutes
  python -m benchmarks storm --peers nginx,haproxy --plots results/storm
  python -m benchmarks storm --rounds 5 --seed 7             five storms, seeds 7 to 11
  python -m benchmarks storm --unseen                        active checks do not see the faults of requests
  python -m benchmarks storm --check                         exit code 1 when a bound is missed
"""


@click.command(epilog=EPILOG)
@click.option(
    "--rate", type=click.FloatRange(10, 5000), help=f"Requests per second.  [default: {Pace().rate:g}]"
)
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Storms for each.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of faults and requests."
)
@click.option("--policy", default="least-in-flight", show_default=True, help="Of Steelyard.")
@click.option(
    "--peers", "others", default="none", metavar="nginx,haproxy|none", show_default=True, help="The others."
)
@click.option("--unseen", "looks_well", is_flag=True, help="A worker that is ill passes its health checks.")
@click.option("--quick", is_flag=True, help="Each fault once, half a minute: an impression, and for tests.")
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="A PNG for each run, there.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all runs there.")
@click.option("--check", is_flag=True, help="Exit code 1 when a bound is missed.")
def storm(
    policy: str, others: str, plots: Path | None, file: Path | None, check: bool, **options: Any
) -> int:
    """Inject faults into the workers of three regions in turn, and check every request."""
    proxies = (*map(ours, known_policies([policy])), *chosen(names_in(others)))
    cores = cores_for("one")
    require_writable("--json", file)
    if plots is not None:
        folder_for(plots)
    plan = Plan(
        peers=tuple(proxy for proxy in proxies if not proxy.absence),
        pace=pace_of(options["rate"], options["quick"]),
        rounds=options["rounds"],
        seed=options["seed"],
        proxy_core=cores[0],
        rest_core=generator_core(),
        looks_well=options["looks_well"],
    )
    console = console_here()
    for proxy in proxies:
        if proxy.absence:
            console.print(Text(f"absent: {proxy.name} ({proxy.absence})"))
    session = Session(plan, console, plots)
    was_stopped = session.run_session()
    found = session.present()
    if file is not None:
        session.write(file)
    return exit_code(console, was_stopped, check, [one.is_met for one in found])


def pace_of(rate: float | None, is_quick: bool) -> Pace:
    pace = QUICK if is_quick else Pace()
    return pace if rate is None else Pace(rate, pace.posts, pace.quiet, pace.storm, pace.episodes, pace.lasts)


def folder_for(plots: Path) -> None:
    """Create the folder of plots. Raises `BadInputError` if that fails."""
    try:
        plots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"--plots: {plots}: {error.strerror}") from None


class Session:
    """One session of the benchmark: runs the plan, collects figures and prints tables and bounds."""

    def __init__(self, plan: Plan, console: Console, plots: Path | None) -> None:
        self.found: list[Figures] = []
        self._episodes: list[list[dict[str, Any]]] = []
        self._plan, self._console, self._plots = plan, console, plots

    def run_session(self) -> bool:
        """Measure; returns whether it was interrupted. Raises `ExperimentError`."""
        self._console.print(Text(introduction(self._plan)))
        plan = self._plan
        return run_in_folder(
            lambda folder: run_plan(plan, folder, self._run_ended), self._console, "in the storm"
        )

    def _run_ended(self, run: Storm) -> None:
        figures = figures_of(run, self._plan.pace)
        self.found.append(figures)
        self._episodes.append([asdict(episode) for episode in run.episodes])
        line = (
            f"[{len(self.found)}/{self._plan.rounds * len(self._plan.peers)}] {run.peer}: {in_words(figures)}"
        )
        self._console.print(Text(line, style="red" if figures.fault else "dim"))
        if self._plots is not None and run.account is not None:
            self._draw(run, figures, self._plots)

    def _draw(self, run: Storm, figures: Figures, folder: Path) -> None:
        from benchmarks.storm.plot import storm_figure
        from experiments.report.canvas import to_png  # half a second of imports that only plots need

        file = folder / f"{run.peer.partition(' ')[0]}-{run.round}.png"
        file.write_bytes(to_png(storm_figure(run, figures, self._plan.pace)))
        self._console.print(Text(f"      {file}", style="dim"))

    def present(self) -> list[Verdict]:
        """Print tables and bounds; returns the bounds of Steelyard."""
        names = [peer.name for peer in self._plan.peers]
        proxies = [runs for name in names if (runs := [one for one in self.found if one.peer == name])]
        if not proxies:
            return []
        self._console.print(table_of(proxies))
        self._console.print(faults_table_of(proxies))
        if doubt := doubts(self.found):
            self._console.print(Text(doubt, style="yellow"))
        own = [verdicts(runs) for runs in proxies if runs[0].peer.startswith(peers.OURS)]
        print_verdicts(self._console, found := [verdict for verdicts_ in own for verdict in verdicts_])
        return found

    def write(self, file: Path) -> None:
        """Write plan and runs as JSON. Raises `BadInputError` if the file cannot be written."""
        plan = asdict(self._plan) | {"peers": [peer.name for peer in self._plan.peers]}
        runs = [
            asdict(run) | {"episodes": episodes}
            for run, episodes in zip(self.found, self._episodes, strict=True)
        ]
        write_json("--json", file, {"plan": plan, "runs": runs})


def introduction(plan: Plan) -> str:
    """Text printed before the first run: load, core assignment and the first schedule of faults."""
    pace = plan.pace
    load = f"{pace.rate:g} requests per second, {pace.posts:.0%} POSTs, open loop"
    spans = f"{pace.quiet:g} s of quiet, then {pace.storm:g} s of storm"
    places = f"the proxy on core {plan.proxy_core}, all else on core {plan.rest_core}"
    faults = "\n".join(f"  {episode}" for episode in schedule(pace, plan.seed))
    return (
        f"{load}; {spans}; {places}.\n{plan.rounds} rounds, {len(plan.peers)} proxies, seed {plan.seed}. "
        f"Ours: {describe_build()}.\nEach fault lasts {pace.lasts:g} s:\n{faults}\n"
    )


def in_words(run: Figures) -> str:
    """One run as a line of text."""
    if run.fault:
        return f"INVALID: {run.fault}"
    gets = f"GET {success(run.gets_ok, run.gets)}, POST {success(run.posts_ok, run.posts)}"
    return f"{gets}, {run.twice} twice, recovery {seconds(run.recovery)}, p99 {run.storm_p99 * 1e3:.1f} ms"


def doubts(runs: list[Figures]) -> str:
    """Warning that the machine was busy and times are not judged; empty if there is no reason."""
    found = []
    if late := [run.lag for run in runs if not run.fault and not run.is_punctual]:
        found.append(f"in {len(late)} the generator itself was late, {max(late) * 1e3:.1f} ms at p99 at most")
    if left := [min(run.undisturbed) for run in runs if not run.fault and min(run.undisturbed) < ENOUGH]:
        found.append(f"in {len(left)} the host left us undisturbed for {min(left):.0%} of the time at least")
    if not found:
        return ""
    return f"Of {len(runs)} runs, {' and '.join(found)}: the machine was busy. Their times are not judged."
