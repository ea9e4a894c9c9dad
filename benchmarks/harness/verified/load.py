"""Open-loop generator of verified load: every request differs, and every response is checked byte by byte.

Raw sockets, in a process of its own, without a parser shared with the proxy. A connection that is closed or used up is
replaced; no request is sent twice.

    python -m benchmarks.harness.verified.load JSON FILE

JSON has the fields of `VerifiedLoad`; the results are written to FILE. The first line of output is the zero of all
instants, in seconds of the monotonic clock.
"""

from __future__ import annotations

import json
import re
import sys
import time
from array import array
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.harness.open_load import instants_with_warm_up, without_collections
from benchmarks.harness.open_loop import FREE, HEAD_START, OPENING, ConnectionSlot, OpenLoop, Record, size_of
from benchmarks.harness.verified.account import NO_WORKER, TIMEOUT, Account
from benchmarks.harness.verified.load_process import CONNECTIONS, WARM_UP, VerifiedLoad
from benchmarks.harness.verified.messages import WORKERS, CheckedRequest, Ending, checked_requests, outcome_of
from experiments.run_data import Flags, Kind

CLOSES = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
NAMES = {name.encode(): index for index, name in enumerate(WORKERS)}
BROKEN = {Kind.TIMEOUT: Ending.TIMEOUT, Kind.REFUSED: Ending.REFUSED, Kind.UNFINISHED: Ending.UNFINISHED}


class VerifiedLoop(OpenLoop):
    """Open loop whose requests have different bytes, and which checks each response."""

    def __init__(self, port: int, checked: list[CheckedRequest], fresh: Flags, connections: int) -> None:
        super().__init__(port, b"", connections, TIMEOUT)
        self._port = port
        self._checked = checked
        self._is_fresh = fresh
        self.ending = array("b", [Ending.UNFINISHED]) * len(checked)
        self.worker = array("b", [NO_WORKER]) * len(checked)
        self.strays = 0

    def requests(self, count: int) -> list[bytes]:
        return [request.message(self._port) for request in self._checked]

    def _hear(self, lane: ConnectionSlot, now: float) -> None:
        try:
            data = lane.recv(1 << 16)
        except BlockingIOError:
            return self._opened(lane, now)
        except OSError:
            data = b""
        if lane.number == OPENING:
            return self._go_down(lane)
        if not data or lane.number == FREE:
            self.strays += bool(data)
            return self._end_broken(lane, Kind.RESET, now)
        lane.came += data
        size = size_of(lane.came)
        if 0 <= size <= len(lane.came):
            self._judge(lane, size, now)
        return None

    def _judge(self, lane: ConnectionSlot, size: int, now: float) -> None:
        """Check a complete response and free or replace its connection."""
        number, came = lane.number, lane.came
        end = came.index(b"\r\n\r\n") + 4
        head, body = came[:end], came[end:size]
        ending, name = outcome_of(self._checked[number], head, body)
        if len(came) > size:
            ending = Ending.CORRUPT
        self.ending[number], self.worker[number] = ending, NAMES.get(name, NO_WORKER)
        lane.came = b""
        if ending >= Ending.CROSSED or CLOSES.search(head) or self._is_fresh[number]:
            self._end_broken(lane, Kind.OK, now)
        else:
            self._end(lane, Kind.OK, now)

    def _end_broken(self, lane: ConnectionSlot, kind: Kind, now: float) -> None:
        number = lane.number
        if number >= 0 and self.ending[number] == Ending.UNFINISHED:
            cut = Ending.CUT if lane.came else Ending.CLOSED
            self.ending[number] = BROKEN.get(kind, cut)
        super()._end_broken(lane, kind, now)

    def account(self, record: Record, zero: float) -> Account:
        """Rows of all requests; `zero` is an instant of the monotonic clock."""
        ending = np.array(self.ending, dtype=np.int64)
        left = ending == Ending.UNFINISHED
        ending[left] = np.where(np.isfinite(record.sent[left]), Ending.TIMEOUT, Ending.REFUSED)
        return Account(
            due=record.due - zero,
            sent=record.sent - zero,
            ended=record.ended - zero,
            has_waited=record.has_waited,
            is_post=np.array([request.is_post for request in self._checked], dtype=np.bool_),
            ending=ending,
            worker=np.array(self.worker, dtype=np.int64),
            strays=np.array([self.strays]),
        )


def run(load: VerifiedLoad, file: Path) -> None:
    rng = np.random.default_rng(load.seed)
    instants = instants_with_warm_up(load.rate, WARM_UP, load.seconds, rng)
    checked = checked_requests(len(instants), load.posts, load.seed)
    loop = VerifiedLoop(load.port, checked, rng.random(len(instants)) < load.fresh, CONNECTIONS)
    with without_collections(), closing(loop):
        print(time.monotonic() + HEAD_START + WARM_UP, flush=True)
        record = loop.run(instants.tolist())
    loop.account(record, float(record.due[0] - instants[0]) + WARM_UP).save(file)


if __name__ == "__main__":
    run(VerifiedLoad(**json.loads(sys.argv[1])), Path(sys.argv[2]))
