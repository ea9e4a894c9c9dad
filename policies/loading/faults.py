"""Message for a fault of a user's policy, one line, with the file and line of the user's code where there is one."""

from __future__ import annotations

import dis
from collections.abc import Collection
from traceback import walk_tb

from policies.errors import LONGEST_FAULT

RAISE = dis.opmap["RAISE_VARARGS"]


def is_interrupt(error: BaseException) -> bool:
    """Return whether the user has pressed Ctrl-C; False for a `KeyboardInterrupt` of a raise statement."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_code.co_code[trace.tb_lasti] != RAISE


def fault_at(error: BaseException, paths: Collection[str]) -> str:
    """Return `FILE:LINE: EXCEPTION: message`, of the innermost line in one of the files `paths`.

    For an exception that none of them raised or called, the exception alone.
    """
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename is not None:
        text = " ".join(str(error.msg).split())
    what = f"{type(error).__name__}: {text[:LONGEST_FAULT]}" if text else type(error).__name__
    place = place_of(error, paths)
    return what if place is None else f"{place}: {what}"


def place_of(error: BaseException, paths: Collection[str]) -> str | None:
    """Return `FILE:LINE` of the innermost line of these files that the exception passed; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename in paths:
        return f"{error.filename}:{error.lineno or 1}"
    passed = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    return next((f"{path}:{line}" for path, line in reversed(passed) if path in paths), None)
