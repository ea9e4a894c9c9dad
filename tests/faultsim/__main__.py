"""Fault simulation: python -m tests.faultsim [SEED …] [--seeds N] [--processes N] [--journal] [--shrink]

With seeds, each is run once; `--journal` prints all events, `--shrink` the smallest plan that still fails. Without,
random seeds are run in several processes; those that fail are printed with the command that replays them. `make
faultsim` is the latter.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from random import SystemRandom

from tests.faultsim.draw import draw
from tests.faultsim.plan import Plan
from tests.faultsim.search import SEEDS, fault_of, kind_of, search
from tests.faultsim.shrink import shrunk


def arguments() -> Namespace:
    parser = ArgumentParser(prog="python -m tests.faultsim")
    parser.add_argument("given", nargs="*", type=int, metavar="SEED")
    parser.add_argument("--seeds", type=int, default=500, help="how many, where none are given")
    parser.add_argument("--first", type=int, help="count from this one instead of a fresh one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--journal", action="store_true", help="print what happens")
    parser.add_argument("--shrink", action="store_true", help="take out of a failing run what can go")
    return parser.parse_args()


def replay(seed: int, journal: bool, shrink: bool) -> bool:
    """Run one seed and print its result; return whether all invariants held."""
    plan = draw(seed)
    fault = fault_of(plan, print if journal and not shrink else None)
    if fault is not None and shrink:
        plan = shrunk(plan, lambda smaller: kind_of(fault_of(smaller)) == kind_of(fault))
        show(plan)
        fault = fault_of(plan, print)
    print(f"seed {seed}: {fault or 'holds'}")
    return fault is None


def show(plan: Plan) -> None:
    print(f"settings {plan.settings}\nhosts {plan.hosts}, of which HTTP/2 {plan.http2_hosts}")
    print(f"grain {plan.grain:g} s, idle closes {plan.idle_closes}")
    for client in plan.clients:
        print(f"client {client.number}, HTTP/{1 + client.is_http2}, from {client.starts:.3f} s, ", end="")
        print(f"{client.depth} ahead: {client.requests}")
    for request in plan.requests:
        print(
            f"{request} {request.size} B, damage {request.client_damage} {request.worker_damage} "
            f"{request.stream_damage}, {request.reply}"
        )
    for fault in plan.faults:
        print(f"at {fault.at:.3f} s: {fault}")


if __name__ == "__main__":
    asked = arguments()
    if asked.given:
        held = [replay(seed, asked.journal, asked.shrink) for seed in asked.given]
        sys.exit(not all(held))
    fresh = SystemRandom().randrange(SEEDS) if asked.first is None else asked.first
    sys.exit(not search(fresh, asked.seeds, asked.processes))
