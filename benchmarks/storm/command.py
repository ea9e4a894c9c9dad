"""`python -m benchmarks storm`: two minutes of worker faults under steady load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.harness import peers
from benchmarks.harness.options import (
    CHECK,
    JSON,
    PEERS,
    POLICY,
    QUICK,
    SEED,
    known_policies,
    names_in,
    proxy_and_load_cores,
)
from benchmarks.harness.peers import OURS, Peer, run_haproxy, run_nginx, run_steelyard
from benchmarks.harness.verified.load_process import steelyard
from benchmarks.storm import plan as plans
from benchmarks.storm.figures import (
    MIN_UNDISTURBED,
    Figures,
    faults_table_of,
    figures_of,
    seconds,
    success,
    table_of,
    verdicts,
)
from benchmarks.storm.plan import Episode, Pace, schedule
from benchmarks.storm.runs import Storm, StormPlan, run_plan
from experiments.platform.session import Session
from experiments.platform.terminal import make_directory
from policies.loading.reference import label_of

OTHERS = {
    "nginx": Peer("nginx", lambda site: run_nginx(site, "storm-nginx.conf"), "nginx"),
    "haproxy": Peer("haproxy", lambda site: run_haproxy(site, "storm-haproxy.cfg"), "haproxy"),
}
"""Each in the best configuration known to the authors, from the templates `harness/templates/storm-…`, in which every
relevant setting has its reason in a comment. None knows when a fault comes or which worker it strikes.
"""

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
@SEED
@POLICY
@PEERS
@click.option("--unseen", "looks_well", is_flag=True, help="A worker with a fault passes its health checks.")
@QUICK
@click.option(
    "--plots", type=click.Path(path_type=Path, file_okay=False), help="Folder for a PNG of each run."
)
@JSON
@CHECK
def storm(
    policy: str, others: str, plots: Path | None, file: Path | None, check: bool, **options: Any
) -> int:
    """Inject faults into the workers of three regions in turn, and check every request."""
    session = Session(file, check)
    proxies = (*map(ours, known_policies([policy])), *peers.chosen(names_in(others), OTHERS))
    proxy_core, rest_core = proxy_and_load_cores()
    if plots is not None:
        make_directory("--plots", plots)
    plan = StormPlan(
        peers=peers.available(proxies, session.say),
        pace=pace_of(options["rate"], options["quick"]),
        rounds=options["rounds"],
        seed=options["seed"],
        proxy_core=proxy_core,
        rest_core=rest_core,
        looks_well=options["looks_well"],
    )
    session.introduce(introduction(plan))
    runs: list[tuple[Figures, Sequence[Episode]]] = []

    def run_ended(run: Storm) -> None:
        figures = figures_of(run, plan.pace)
        runs.append((figures, run.episodes))
        session.run_ended(run.peer, storm_in_words(figures), figures.fault)
        if plots is not None and run.account is not None:
            file = plots / f"{run.peer.partition(' ')[0]}-{run.round}.png"
            draw(run, figures, plan.pace, file)
            session.say(f"      {file}", "dim")

    session.measure(lambda folder: run_plan(plan, folder, run_ended), plan.rounds * len(plan.peers))
    return conclude(session, plan, runs)


def ours(policy: str) -> Peer:
    """Steelyard with a policy in its storm configuration, which is made as those of `OTHERS`."""
    return Peer(f"{OURS} {label_of(policy)}", lambda site: run_steelyard(site, steelyard(site, policy)))


def pace_of(rate: float | None, is_quick: bool) -> Pace:
    """Durations of the storm, with another rate if one is given."""
    pace = plans.QUICK if is_quick else Pace()
    return pace if rate is None else replace(pace, rate=rate)


def draw(run: Storm, figures: Figures, pace: Pace, file: Path) -> None:
    from benchmarks.storm.plot import storm_figure
    from experiments.report.canvas import to_png  # half a second of imports that only plots need

    file.write_bytes(to_png(storm_figure(run, figures, pace)))


def conclude(session: Session, plan: StormPlan, runs: Sequence[tuple[Figures, Sequence[Episode]]]) -> int:
    """Print tables and the bounds of Steelyard, write the file; returns the exit code."""
    figures = [found for found, _ in runs]
    by_peer = [[one for one in figures if one.peer == peer.name] for peer in plan.peers]
    proxies = [found for found in by_peer if found]
    own = [found for found in proxies if found[0].peer.startswith(OURS)]
    return session.conclude(
        [verdict for found in own for verdict in verdicts(found)],
        [table_of(proxies), faults_table_of(proxies)] if proxies else (),
        doubts(figures),
        plan=peers.described(plan),
        runs=[asdict(found) | {"episodes": list(episodes)} for found, episodes in runs],
    )


def introduction(plan: StormPlan) -> str:
    """Text printed before the first run: load, core assignment and the first schedule of faults."""
    pace = plan.pace
    load = f"{pace.rate:g} requests per second, {pace.posts:.0%} POSTs, open loop"
    spans = f"{pace.quiet:g} s without faults, then {pace.storm:g} s of storm"
    places = f"the proxy on core {plan.proxy_core}, all else on core {plan.rest_core}"
    faults = "\n".join(f"  {episode}" for episode in schedule(pace, plan.seed))
    return (
        f"{load}; {spans}; {places}.\n{plan.rounds} rounds, {len(plan.peers)} proxies, seed {plan.seed}. "
        f"Each fault lasts {pace.lasts:g} s:\n{faults}"
    )


def storm_in_words(run: Figures) -> str:
    gets = f"GET {success(run.gets_ok, run.gets)}, POST {success(run.posts_ok, run.posts)}"
    return f"{gets}, {run.twice} twice, recovery {seconds(run.recovery)}, p99 {run.storm_p99 * 1e3:.1f} ms"


def doubts(runs: Sequence[Figures]) -> str:
    """Warning that the machine was busy and times are not judged; empty if there is no reason."""
    found = []
    if late := [run.lag for run in runs if not run.fault and not run.is_punctual]:
        found.append(f"in {len(late)} the generator was late, at most {max(late) * 1e3:.1f} ms at p99")
    if left := [
        min(run.undisturbed) for run in runs if not run.fault and min(run.undisturbed) < MIN_UNDISTURBED
    ]:
        found.append(
            f"in {len(left)} the host took cores away, and as little as {min(left):.0%} was undisturbed"
        )
    if not found:
        return ""
    return f"Of {len(runs)} runs, {' and '.join(found)}: the machine was busy. Their times are not judged."
