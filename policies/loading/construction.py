"""Construction of a user's policy class, and the check that it has the methods of a policy.

class Tempered: ...                                              neither randomness nor options
def __init__(self, *, sharpness: float = 2.0)                    options
def __init__(self, rng: Random, *, sharpness: float = 2.0)       randomness and options
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Collection, Mapping
from random import Random
from traceback import walk_tb
from typing import Any

from policies.errors import LONGEST_FAULT, BrokenPolicy, PoliciesError
from policies.policy import Policy, PolicyMaker


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


METHODS = {
    "pick": ("facts", "available", "now"),
    "observe": ("state", "outcome", "now"),
    "members_changed": ("states", "now"),
    "tick": ("now",),
    "probes": ("now",),
    "observe_probe": ("state", "load", "latency", "now"),
    "doubts": ("state",),
    "share_prompts": ("memory",),
}
"""Methods of a policy with their arguments; only `pick` is required."""

ABSENT: Any = vars(Policy)["pick"]
"""What a class inherits from the protocol if it does not define `pick`."""

FORM = "__init__(self, rng: Random, *, option: float = 1.0), where rng and options may be absent"

PLAIN_TYPES = (float, int, str, bool, "float", "int", "str", "bool")

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def maker_of(make: Callable[..., Policy]) -> PolicyMaker:
    """Return a function of the random source that makes the policy, also for a class that does not take one.

    Raises `BrokenPolicy` if the class cannot be constructed so.
    """
    if not inspect.isclass(make) or takes_rng(make):
        return make
    cls: Any = make
    return lambda rng: cls()


def construct(
    factory: Callable[..., Any], rng: Random, arguments: Mapping[str, Any], paths: Collection[str]
) -> Policy:
    """Make a policy of another package or of a user's file, and check its methods.

    Raises `BrokenPolicy` for whatever is wrong with it, with the line in one of the files `paths`.
    """
    paths = {*paths, *_file_of(factory)}
    try:
        first = (rng,) if not inspect.isclass(factory) or takes_rng(factory) else ()
        policy: Policy = factory(*first, **arguments)
    except BrokenPolicy as error:
        raise BrokenPolicy(f"{_place(factory, '__init__', paths)}{error}") from None
    except (PoliciesError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit
        called = getattr(factory, "__name__", "the factory")
        raise BrokenPolicy(f"{called}() failed: {fault_at(error, paths)}") from None
    try:
        require_methods(policy, paths)
        bool(getattr(policy, "keeps_to_regions", False))
    except PoliciesError:
        raise
    except Exception as error:  # of a property, or of `__getattr__`
        raise BrokenPolicy(fault_at(error, paths)) from None
    return policy


def takes_rng(cls: type) -> bool:
    """Return whether the constructor takes the random source. Raises `BrokenPolicy` for any other required argument."""
    if _has_no_constructor(cls):
        return False
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except ValueError:  # of an extension type without a signature
        return True
    positional = [parameter for parameter in parameters if parameter.kind in POSITIONAL]
    required = [parameter.name for parameter in positional if parameter.default is parameter.empty]
    if len(required) > 1:
        raise BrokenPolicy(f"{cls.__name__}() needs {', '.join(required)}; its constructor must be {FORM}")
    if not positional:
        return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    first = positional[0]
    if first.annotation in PLAIN_TYPES or first.default not in (first.empty, None):
        raise BrokenPolicy(f"{cls.__name__}() takes '{first.name}' by position; options follow a *: {FORM}")
    return True


def _has_no_constructor(cls: type) -> bool:
    """Return whether neither the class nor a base class has a constructor; that of `Protocol` does not count."""
    kin = [base for base in cls.__mro__ if not vars(base).get("_is_protocol", False)]
    init = next((base for base in kin if "__init__" in vars(base)), object)
    new: Any = cls.__new__
    return init is object and new is object.__new__


def require_methods(policy: object, paths: Collection[str] = ()) -> None:
    """Check that the object has the methods of a policy. Raises `BrokenPolicy`."""
    cls = type(policy)
    inherited: Any = getattr(cls, "pick", None)
    if not hasattr(policy, "pick") or inherited is ABSENT:
        wanted = ", ".join(("self", *METHODS["pick"]))
        raise BrokenPolicy(f"{_place(cls, '', paths)}{cls.__name__} has no method pick({wanted})")
    for method, arguments in METHODS.items():
        found = getattr(policy, method, None)
        place, wanted = _place(cls, method, paths), ", ".join(("self", *arguments))
        if found is not None and not _takes(found, len(arguments)):
            raise BrokenPolicy(f"{place}{cls.__name__}.{method} must be a method {method}({wanted})")
        if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
            raise BrokenPolicy(f"{place}{cls.__name__}.{method} must not be async: a policy never waits")


def _takes(method: Any, arguments: int) -> bool:
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # of a built-in without a signature
        return True
    return True


def _place(cls: Any, method: str, paths: Collection[str]) -> str:
    """Return `FILE:LINE: ` of a method, or of the class if it has no such method in one of the files `paths`."""
    code = getattr(getattr(cls, method, None), "__code__", None)
    if code is not None and code.co_filename in paths:
        return f"{code.co_filename}:{code.co_firstlineno}: "
    header = re.compile(rf"\s*class {re.escape(cls.__name__)}\b")
    for path in sorted(paths):
        linecache.checkcache(path)
        for number, line in enumerate(linecache.getlines(path), 1):
            if header.match(line):
                return f"{path}:{number}: "
    return ""


def _file_of(factory: object) -> list[str]:
    """Return the file of the module that defines a class or a function, if that is known."""
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    return [path] if path else []
