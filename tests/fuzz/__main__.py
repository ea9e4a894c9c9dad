"""Coverage-guided storms: python -m tests.fuzz client|worker|http2-client|http2-worker [FILE … | --seconds N]

With files, each is run once, without atheris: this is how what was found is seen again. Without, atheris looks for
more, for N seconds or until there is a fault; what it finds stands in results/fuzz. `client` is about what clients
send, before workers that keep to HTTP; `worker` the reverse; `http2-client` and `http2-worker` are about frames to the
HTTP/2 engine. `make fuzz` runs all of them.
"""

from __future__ import annotations

import gc
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
FOUND = HERE.parent.parent / "results" / "fuzz"
LONGEST = 512
"""Bytes of a storm: longer ones find the same, slower."""

HTTP2 = "http2-"
SIDES = ("client", "worker", f"{HTTP2}client", f"{HTTP2}worker")


def arguments() -> Namespace:
    """What the command line asks for."""
    parser = ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seconds", type=int, default=300)
    return parser.parse_args()


def run(side: str, data: bytes) -> None:
    """One storm; raises what it finds."""
    storm: Any = import_module("tests.support.storm")
    letter = side.removeprefix(HTTP2)[0]
    if side.startswith(HTTP2):
        engine_storm: Any = import_module("tests.support.engine_storm")
        engine_storm.EngineStorm(letter).run(storm.decode(data, "b"))
    else:
        storm.Storm(letter).run(storm.decode(data, letter))


def mutator(side: str, mutate: Callable[[bytes, int], bytes]) -> Callable[[bytes, int, int], bytes]:
    """Damage where HTTP is tender, from the committed files on as often as from what they have become.

    Left to itself libFuzzer (`mutate`) soon breeds what is refused at its first line: a parser in C and regular
    expressions show it no coverage that would lead it further.
    """
    damage: Any = import_module("tests.support.damage")
    storm: Any = import_module("tests.support.storm")
    seeds = [path.read_bytes() for path in sorted((CORPUS / side).iterdir())]
    letters = sorted(storm.Storm.EVENTS)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.3:
            data = rng.choice(seeds)
        if rng.random() < 0.3:
            data += storm.encode([(rng.choice(letters), b""), (side[0], rng.choice(seeds))])
        if rng.random() < 0.3:
            return mutate(data[:most], most)
        return bytes(damage.damaged(data, [damage.any_damage(rng) for _ in range(rng.randint(1, 2))])[:most])

    return mutated


def frame_mutator(side: str, mutate: Callable[[bytes, int], bytes]) -> Callable[[bytes, int, int], bytes]:
    """Mutate events of storms against the HTTP/2 engine: one more, one less, one of another seed, or its bytes."""
    storm: Any = import_module("tests.support.storm")
    engine_storm: Any = import_module("tests.support.engine_storm")
    seeds = [storm.decode(path.read_bytes(), "b") for path in sorted((CORPUS / side).iterdir())]
    letters = sorted(engine_storm.EngineStorm.EVENTS)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)
        events = storm.decode(data, "b")
        for _ in range(rng.randint(1, 3)):
            at, what = rng.randint(0, len(events)), rng.random()
            if what < 0.3:
                events.insert(at, (rng.choice(letters), bytes(rng.choices(range(16), k=rng.randint(0, 4)))))
            elif what < 0.5:
                events[at:at] = rng.choice(seeds)[rng.randint(0, 3) :]
            elif what < 0.7 or not events:
                del events[at : at + 1]
            else:
                letter, payload = events[at % len(events)]
                events[at % len(events)] = (letter, mutate(payload, 64).replace(storm.MARK, b""))
        return bytes(storm.encode(events)[:most])

    return mutated


def fuzz(side: str, seconds: int) -> None:
    """Until the time is over, or something is found."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["balancer", "policies"]):
        import_module("tests.support.engine_storm" if side.startswith(HTTP2) else "tests.support.storm")
    gc.collect()
    gc.freeze()  # a storm may ask the collector; it need not look at all that was imported
    found = FOUND / side
    found.mkdir(parents=True, exist_ok=True)
    options = [
        *(f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-len_control=0", "-mutate_depth=2"),
        *("-timeout=20", f"-dict={HERE / 'http.dict'}", f"-artifact_prefix={FOUND / side}-"),
        *(str(found), str(CORPUS / side)),
    ]
    of_side = frame_mutator if side.startswith(HTTP2) else mutator
    mutate = of_side(side, lambda data, most: bytes(atheris.Mutate(data, most)))  # another one once it runs
    atheris.Setup([sys.argv[0], *options], lambda data: run(side, data), custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    asked = arguments()
    for file in asked.files:
        run(asked.side, file.read_bytes())
    if not asked.files:
        fuzz(asked.side, asked.seconds)
