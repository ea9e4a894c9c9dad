"""`experiments live`: compare policies on a running balancer under its own traffic.

Parses options and prints the result; the evaluation is in `switchback.py`.
"""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from experiments.commands.live_options import percent, policies_chosen, usual_washout
from experiments.commands.options import PAGE, live_page
from experiments.errors import BadInputError, ExperimentError
from experiments.platform.terminal import (
    STOPPED,
    LivePanel,
    clock,
    console_here,
    duration,
    in_ms,
    interruptible,
    plain_table,
    require_writable,
    write_json,
)
from experiments.report.terminal_tables import verdict_text
from experiments.stats.comparison import ENOUGH_BLOCKS
from experiments.switchback.balancer import HttpBalancer, LiveBalancer
from experiments.switchback.readings import Window
from experiments.switchback.switchback import Findings, Plan, Switchback
from experiments.switchback.verdict import LiveResult, Row, result_of
from experiments.verdict.judged import counted
from experiments.verdict.phrases import tail_text

if TYPE_CHECKING:
    from experiments.live_page.process import LivePage

EPILOG = """\b
Examples:
  experiments live http://127.0.0.1:8080 --policies region-aware,peak-ewma
  experiments live https://balancer.example.org --token … --policies a,b --block 30s --blocks 40
  experiments live http://127.0.0.1:8080 --policies random,random        an A/A pair: the noise of this traffic
  experiments live http://127.0.0.1:8080 --policies region-aware \\
      --policy '{"name": "region-aware", "margin": 0.05}' --max-p99 400ms --max-errors 1%

Exit codes: 0 done, 1 a guard rail broke and the old policy is back, 2 bad input, 3 the balancer failed, 130 stopped.
"""


@click.command("live", epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option(
    "--policies", default="", metavar="A,B,…", help="By name. One that is named twice is an A/A pair."
)
@click.option("--policy", "tables", multiple=True, metavar="JSON", help="One with options; may be repeated.")
@click.option(
    "--block",
    "period",
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Of each policy, each time.",
)
@click.option(
    "--blocks",
    type=click.IntRange(1, 10_000),
    default=40,
    show_default=True,
    help=f"In each, every policy has its turn once, in random order; {ENOUGH_BLOCKS} give a verdict.",
)
@click.option(
    "--washout",
    metavar="DURATION",
    help="After each switch, that does not count.  [default: a sixth of --block, 2s at least, half at most]",
)
@click.option(
    "--max-p99", metavar="DURATION", help="Roll back beyond it.  [default: twice what it was before]"
)
@click.option(
    "--max-errors",
    metavar="PERCENT",
    help="Of requests; roll back beyond it.  [default: 2% more than before]",
)
@click.option(
    "--deadline",
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="As slow counts a failed request in the verdict; goodput is the share answered within it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the order.")
@click.option(
    "--token",
    envvar="BALANCER_ADMIN__TOKEN",
    help="The admin.token of the balancer; also from the environment.",
)
@click.option("--pool", metavar="NAME", help="Named pool.  [default: the one without a name]")
@PAGE
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write everything there."
)
def live(
    url: str,
    policies: str,
    tables: tuple[str, ...],
    period: str,
    blocks: int,
    washout: str | None,
    max_p99: str | None,
    max_errors: str | None,
    deadline: str,
    seed: int,
    token: str | None,
    pool: str | None,
    page: str | None,
    file: Path | None,
) -> int:
    """Alternate the policies of the balancer at URL under its own traffic, and report which one serves it best.

    Restores the initial policy at the end, when a guard rail breaks, on Ctrl-C and on any failure.
    """
    chosen, control = policies_chosen(policies, tables)
    seconds = duration("--block", period)
    rest = usual_washout(seconds) if washout is None else duration("--washout", washout)
    if rest >= seconds:
        raise BadInputError(f"--washout: must be shorter than --block ({seconds:g} s), got {rest:g} s")
    if not url.startswith(("http://", "https://", "unix:/")):
        raise BadInputError(f"URL: must begin with http://, https:// or unix:/, got {url!r}")
    require_writable("--json", file)
    plan = Plan(
        chosen, blocks, seconds, rest, seed, min(1.0, seconds / 10),
        None if max_p99 is None else duration("--max-p99", max_p99),
        None if max_errors is None else percent("--max-errors", max_errors),
        duration("--deadline", deadline),
    )  # fmt: skip
    with live_page(page) as shown:
        if shown is not None:
            shown.follow(url, token, pool)
        balancer = HttpBalancer(url, token, pool=pool)
        return LiveEvaluation(plan, control, console_here(), shown).run(balancer, file)


class LiveEvaluation(LivePanel):
    """One evaluation at the terminal, and its observer."""

    def __init__(
        self, plan: Plan, control: tuple[str, str] | None, console: Console, page: LivePage | None = None
    ) -> None:
        super().__init__(console)
        self._plan = plan
        self._control = control
        self._page = page
        self._ended = 0
        self._began_at = time.monotonic()
        self._findings: Findings | None = None
        self._so_far = ""
        self._winner: str | None = None
        self._period = ""
        self._window: Window | None = None

    def run(self, balancer: LiveBalancer, file: Path | None) -> int:
        """Run the evaluation and print the result; returns the exit code. Raises `ExperimentError`."""
        blocks = counted(self._plan.blocks, "block", "blocks")
        self._console.print(
            f"{' and '.join(self._plan.policies)}, {blocks} of {self._plan.period:g} s each: "
            f"about {clock(self._plan.seconds)}",
            highlight=False,
        )
        findings: list[Findings] = []
        problem: ExperimentError | None = None
        was_stopped = False
        try:
            with self:
                asyncio.run(interruptible(self._run(balancer, findings)))
        except ExperimentError as error:
            problem = error
        except (asyncio.CancelledError, KeyboardInterrupt):
            was_stopped = True
        if findings and findings[0].windows:
            result = result_of(self._plan, findings[0], self._control)
            self.present(result)
            self._note(f"{result.verdict.headline}.")
            if file is not None:
                write_json("--json", file, self._document(result, findings[0], problem, was_stopped))
        if findings and findings[0].is_restored:
            self._console.print(f"'{findings[0].initial['name']}' is in force again.", highlight=False)
        if problem is not None:
            raise problem
        return STOPPED if was_stopped else 0

    async def _run(self, balancer: LiveBalancer, findings: list[Findings]) -> None:
        switchback = Switchback(balancer, self._plan, self, time.monotonic, asyncio.sleep)
        findings.append(switchback.findings)
        self._findings = switchback.findings
        await switchback.run()

    # --- Observer

    def period_began(self, block: int | None, label: str) -> None:
        """Start of a period."""
        where = "before" if block is None else f"block {block + 1} of {self._plan.blocks}"
        self._look(block)
        self._period, self._window = f"{where}: {label}", None
        self._note(self._period)

    def _look(self, block: int | None) -> None:
        """Verdict of what was measured so far; printed where its winner is new. The intervals hold at every look."""
        if not block or self._findings is None:
            return
        verdict = result_of(self._plan, self._findings, self._control).verdict
        if not verdict.has_verdict:
            return
        self._so_far = f"after {counted(block, 'block', 'blocks')}: {verdict.headline}"
        if verdict.winner is not None and verdict.winner != self._winner:
            self._console.print(f"{self._so_far}.", highlight=False)
        self._winner = verdict.winner

    def window_grew(self, window: Window) -> None:
        """New reading within a period."""
        self._window = window

    def period_ended(self, block: int | None, label: str, window: Window) -> None:
        """End of a period: print its result as one line."""
        self._ended += 1
        self._console.print(f"{self._period}: {in_words(window)}", highlight=False)

    def _note(self, text: str) -> None:
        """Show the progress on the live page, if there is one."""
        if self._page is not None:
            total = 1 + self._plan.blocks * len(self._plan.policies)
            self._page.note("experiments live", text, self._ended, total)

    def panel(self) -> Text:
        elapsed = time.monotonic() - self._began_at
        left = clock(max(0.0, self._plan.seconds - elapsed))
        line = f"{self._period}   elapsed {clock(elapsed)}   left {left}"
        window = [] if self._window is None else [in_words(self._window)]
        return Text("\n".join([line, *window, *([self._so_far] if self._so_far else [])]))

    # --- result

    def present(self, result: LiveResult) -> None:
        """Print the table and the verdict."""
        heads = ("policy", "periods", "requests", "req/s", "p50 ms", "p99 ms", "mean ms", "errors", "goodput")
        self._console.print(plain_table(heads, map(cells_of, result.rows)))
        for paragraph in verdict_text(result.verdict):
            self._console.print(paragraph)

    def _document(
        self, result: LiveResult, findings: Findings, problem: ExperimentError | None, was_stopped: bool
    ) -> dict[str, Any]:
        return {
            "initial": findings.initial,
            "problem": None if problem is None else str(problem),
            "stopped": was_stopped,
            **result.as_dict(),
            "periods": [
                {
                    "label": label, "block": block, "seconds": window.seconds, "requests": window.requests,
                    "errors": window.errors, "p50": window.mapped_quantile(0.5, self._plan.deadline),
                    "p99": window.mapped_quantile(0.99, self._plan.deadline),
                    "mean": window.mapped_mean(self._plan.deadline),
                    "goodput": window.goodput(self._plan.deadline), "shares": window.shares,
                }
                for label, windows in findings.windows.items()
                for block, window in windows.items()
            ],
        }  # fmt: skip


def cells_of(row: Row) -> list[str]:
    """Row of one policy in the table of the result."""
    times = (row.p50, row.p99, row.mean)
    return [
        *(row.label, str(row.periods), str(row.requests), f"{row.rate:.1f}"),
        *(f"{value * 1e3:.1f}" if math.isfinite(value) else "–" for value in times),
        f"{row.error_share:.2%}",
        f"{row.goodput:.2%}" if math.isfinite(row.goodput) else "–",
    ]


def in_words(window: Window) -> str:
    """Text such as `120.3/s, p50 21 ms, p99 48 ms, errors 0.00%`."""
    tail = tail_text(window.answered, window.quantile)
    return f"{window.rate:.1f}/s, p50 {in_ms(window.quantile(0.5))}{tail}, errors {window.error_share:.2%}"
