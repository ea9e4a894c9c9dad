"""Policies by name.

Built-in policies are in one table; other packages add theirs under the entry-point group `steelyard.policies` and
cannot replace a built-in one. `FILE.py:CLASS` and `MODULE:CLASS` name a class directly.

A policy is made by calling its factory: `factory(rng, **options)`. Its keyword-only parameters are its options; their
annotations (float, int, str, bool, Literal, PolicyMaker; each also with `| None`) define what a configuration may
contain, and may state what they mean and their bounds: `Annotated[float, "meaning", above(0)]`. Both are checked here;
a class that is called directly checks neither. With any other annotation an option is whatever JSON can express, and
each instance gets a copy of its own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from random import Random
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from policies.algorithms.aperture import Aperture
from policies.algorithms.c3 import C3
from policies.algorithms.edf_round_robin import EdfRoundRobin
from policies.algorithms.join_idle_queue import JoinIdleQueue
from policies.algorithms.latency_weighted import LatencyWeighted
from policies.algorithms.least_in_flight import LeastInFlight
from policies.algorithms.least_time import LeastTime
from policies.algorithms.maglev import Maglev
from policies.algorithms.peak_ewma import PeakEwma
from policies.algorithms.prequal import Prequal
from policies.algorithms.random_choice import RandomChoice
from policies.algorithms.region_aware import RegionAware
from policies.algorithms.regions import RegionRoundRobin, SingleRegion
from policies.algorithms.rendezvous import Rendezvous
from policies.algorithms.reported_load import ReportedLoadRoundRobin
from policies.algorithms.ring_hash import RingHash
from policies.algorithms.round_robin import RoundRobin
from policies.algorithms.smooth_round_robin import SmoothRoundRobin
from policies.errors import BadPolicyOption, BrokenPolicy, PoliciesError, UnknownPolicy
from policies.inference.cache_aware import CacheAware
from policies.inference.dynamo import Dynamo
from policies.inference.llm_d import LlmD
from policies.inference.lmetric import LMetric
from policies.inference.pending_tokens import PendingTokens
from policies.inference.prefix_chunks import PrefixChunks
from policies.loading.construction import construct
from policies.loading.library import Library
from policies.loading.reference import is_reference
from policies.options import Bound
from policies.policy import Policy, PolicyMaker
from policies.steelyard.policy import Steelyard

GROUP = "steelyard.policies"

Factory = Callable[..., Policy]

FAMILIES: dict[str, dict[str, Factory]] = {
    "the least expected cost of connecting, distance, wait and failures, over all regions at once": {
        "steelyard": Steelyard,
    },
    "at random; each endpoint in turn, evenly interleaved; all by weight": {
        "random": RandomChoice,
        "round-robin": RoundRobin,
        "smooth-round-robin": SmoothRoundRobin,
        "edf-round-robin": EdfRoundRobin,
    },
    "the less loaded of two; the same within a small subset, for warmer connections; an idle endpoint": {
        "least-in-flight": LeastInFlight,
        "aperture": Aperture,
        "join-idle-queue": JoinIdleQueue,
    },
    "mostly to fast endpoints; all but the first also consider requests in flight": {
        "latency-weighted": LatencyWeighted,
        "peak-ewma": PeakEwma,
        "least-time": LeastTime,
        "c3": C3,
    },
    "by the load that workers report with responses; by answers to load probes": {
        "reported-load": ReportedLoadRoundRobin,
        "prequal": Prequal,
    },
    "the home region unless another is cheaper; regions in turn; one region only": {
        "region-aware": RegionAware,
        "region-round-robin": RegionRoundRobin,
        "single-region": SingleRegion,
    },
    "the same endpoint for the same key; with or without a bound on load": {
        "ring-hash": RingHash,
        "maglev": Maglev,
        "rendezvous": Rendezvous,
    },
    "for inference servers: by tokens that wait there and by what is cached there; the last by the latter alone": {
        "pending-tokens": PendingTokens,
        "llm-d": LlmD,
        "lmetric": LMetric,
        "cache-aware": CacheAware,
        "dynamo": Dynamo,
        "prefix-chunks": PrefixChunks,
    },
}
"""Where a request goes -> the built-in policies that send it there."""

TABLE: dict[str, Factory] = {name: made for family in FAMILIES.values() for name, made in family.items()}
"""Factory of every built-in policy by name."""

ACCEPTED: dict[Any, tuple[tuple[type, ...], str]] = {
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
}
"""Annotation of an option -> the types its value may have, and their description."""


LARGEST = 1e9
"""Bound on the magnitude of every numeric option; most options have a tighter one."""


LIBRARY = Library()
"""Files and modules that are named without a library: each is read once per process, as experiments need it."""


def known() -> list[str]:
    """Return the names of all policies and plug-ins, sorted."""
    return sorted({*TABLE, *_plugins()})


def describe() -> dict[str, str]:
    """Return name -> one-line description. For a plug-in that cannot be loaded this is the error."""
    return {name: description_of(name) for name in known()}


def broken() -> dict[str, str]:
    """Return name -> error of the plug-ins that cannot be made without options."""
    errors = {}
    for name in _plugins():
        try:
            make(name, {}, Random(0), name)
        except PoliciesError as error:
            errors[name] = str(error)
    return errors


def make(
    name: str, options: Mapping[str, Any], rng: Random, path: str = "policy", library: Library = LIBRARY
) -> Policy:
    """Make the policy `name`. `path` is the path of the options in the configuration, for messages.

    Raises UnknownPolicy, BadPolicyOption, BrokenPolicy.
    """
    factory = find(name, library)
    try:
        arguments = _arguments(name, factory, options, library)
        if name in TABLE:
            return factory(rng, **arguments)
        return construct(factory, rng, arguments, library.paths)
    except BadPolicyOption as error:
        raise error.within(path) from None


def from_spec(
    spec: str | Mapping[str, Any], rng: Random, path: str = "policy", library: Library = LIBRARY
) -> Policy:
    """Make a policy from its configuration: a name, or a table of `name` and options. Raises as `make` does."""
    if isinstance(spec, str):
        return make(spec, {}, rng, path, library)
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise BadPolicyOption(path, "must be the name of a policy, or a table with a name and options")
    options = {key: value for key, value in spec.items() if key != "name"}
    return make(spec["name"], options, rng, path, library)


def find(name: str, library: Library = LIBRARY) -> Factory:
    """Return the factory of the policy `name`. Raises UnknownPolicy, BrokenPolicy."""
    if name in TABLE:
        return TABLE[name]
    if is_reference(name):
        return library.find(name)
    try:
        plugin = _plugins()[name]
    except KeyError:
        raise UnknownPolicy(name, known()) from None
    try:
        factory: Factory = plugin.load()
    except (Exception, SystemExit) as fault:
        raise BrokenPolicy(f"policy '{name}' ({plugin.value}) cannot be loaded: {fault!r}") from fault
    return factory


def reads_reports(spec: str | Mapping[str, Any]) -> bool:
    """Return whether a policy, or one that it wraps, uses the load that workers report in responses.

    Raises UnknownPolicy, BrokenPolicy.
    """
    return any(getattr(find(name), "reads_reports", name not in TABLE) for name in names_in(spec))


def picks_by_key(spec: str | Mapping[str, Any]) -> bool:
    """Return whether the `pick` of a policy, or of one that it wraps, reads `facts.key`; False if it is compiled."""
    picks = [getattr(find(name), "pick", None) for name in names_in(spec)]
    return any("key" in getattr(getattr(pick, "__code__", None), "co_names", ()) for pick in picks)


def is_built_in(spec: str | Mapping[str, Any]) -> bool:
    """Return whether a policy and those that it wraps are of the table, without a user's code."""
    return all(name in TABLE for name in names_in(spec))


def references_in(spec: str | Mapping[str, Any], library: Library = LIBRARY) -> Iterator[str]:
    """Yield the files and modules that a policy and those that it wraps name, as `names_in` does."""
    return filter(is_reference, names_in(spec, library))


def names_in(spec: str | Mapping[str, Any], library: Library = LIBRARY) -> Iterator[str]:
    """Yield the names of a policy and those that it wraps, each before it is loaded. Raises BrokenPolicy."""
    table: Mapping[str, Any] = {"name": spec} if isinstance(spec, str) else spec
    name = table.get("name")
    if not isinstance(name, str):
        return
    yield name
    try:
        options = options_of(find(name, library))
    except UnknownPolicy:  # which is refused when it is made, or is an oracle
        return
    for option, parameter in options.items():
        inner = table.get(option, parameter.default)
        if parameter.annotation == PolicyMaker and isinstance(inner, str | Mapping):
            yield from names_in(inner, library)


def options_of(factory: Factory) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of `factory`. Their annotations are types, without `| None`.

    Raises BrokenPolicy.
    """
    return {name: option for name, (option, _) in _options(factory).items()}


def meanings_of(factory: Factory) -> dict[str, str]:
    """Return option -> meaning of the options of `factory` that are annotated as `Annotated[TYPE, "meaning"]`."""
    stated = [(name, part) for name, (_, parts) in _options(factory).items() for part in parts]
    return {name: part for name, part in stated if isinstance(part, str)}


def bounds_of(factory: Factory) -> dict[str, list[Bound]]:
    """Return option -> bounds of `factory`'s options, which are annotated as `Annotated[TYPE, …, above(0)]`."""
    return {
        name: [part for part in parts if isinstance(part, Bound)]
        for name, (_, parts) in _options(factory).items()
    }


Options = dict[str, tuple[inspect.Parameter, list[Any]]]
"""Option -> its parameter, and what its annotation states beside the type."""


def _options(factory: Factory) -> Options:
    """Read the options of a factory. Other parameters may be annotated by what is imported for type checkers alone."""
    made = factory.__init__ if inspect.isclass(factory) else factory
    names = {each.__name__: each for each in getattr(factory, "__type_params__", ())}
    try:
        own = {p.name: p for p in inspect.signature(factory).parameters.values() if p.kind is p.KEYWORD_ONLY}
        hints = {name: hint for name, hint in getattr(made, "__annotations__", {}).items() if name in own}
        known = getattr(inspect.unwrap(made), "__globals__", {})
        hints = get_type_hints(SimpleNamespace(__annotations__=hints), known, names, include_extras=True)
        read = {name: _type_of(hints.get(name, Any)) for name in own}
    except Exception as fault:  # an annotation that names nothing; no signature; a module
        code = getattr(made, "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
        raise BrokenPolicy(f"{place}its options cannot be read: {fault}") from None
    return {name: (own[name].replace(annotation=kind), stated) for name, (kind, stated) in read.items()}


def _type_of(hint: Any) -> tuple[Any, list[Any]]:
    """Return the type in an annotation, and what is stated beside it: within `| None` and `type NAME = …`, too."""
    if hasattr(hint, "__value__"):
        return _type_of(hint.__value__)
    if hasattr(hint, "__metadata__"):
        kind, stated = _type_of(hint.__origin__)
        return kind, [*stated, *hint.__metadata__]
    is_union = isinstance(hint, UnionType) or get_origin(hint) is Union
    others = [one for one in get_args(hint) if one is not NoneType] if is_union else []
    if len(others) != 1:
        return hint, []
    kind, stated = _type_of(others[0])
    return kind, [*stated, NoneType]


_options_of_built_in = cache(_options)
"""The same of a policy of the table, read once: it takes longer than to make the policy."""


def _plugins() -> dict[str, EntryPoint]:
    return {plugin.name: plugin for plugin in entry_points(group=GROUP)}


def description_of(name: str) -> str:
    """Return the first line of the docstring of a policy, or why it cannot be loaded."""
    try:
        text = inspect.getdoc(find(name)) or ""
    except BrokenPolicy as error:
        return str(error)
    return text.partition("\n")[0]


def _arguments(name: str, factory: Factory, options: Mapping[str, Any], library: Library) -> dict[str, Any]:
    allowed = (_options_of_built_in if name in TABLE else _options)(factory)
    if "name" in allowed:
        raise BrokenPolicy(f"'{name}': an option must not be called name, which is the policy's")
    everything = inspect.signature(factory).parameters
    for option in options:
        if option not in allowed:
            close = get_close_matches(option.lower(), allowed, n=1)
            hint = f"did you mean '{close[0]}'? Its" if close else "its"
            has = f"{hint} options: {', '.join(sorted(allowed))}" if allowed else "it has none"
            star = "; options follow a * in its constructor" * (option in everything)
            raise BadPolicyOption(option, f"'{name}' has no such option; {has}{star}")
    for option, (parameter, _) in allowed.items():
        if parameter.default is parameter.empty and option not in options:
            raise BadPolicyOption(option, f"'{name}' needs it")
    return {option: _argument(option, *allowed[option], value, library) for option, value in options.items()}


def _argument(
    option: str, parameter: inspect.Parameter, stated: list[Any], value: Any, library: Library
) -> Any:
    annotation = parameter.annotation
    if value is None and (parameter.default is None or NoneType in stated):
        return None
    if annotation == PolicyMaker:
        from_spec(value, Random(0), option, library)  # report errors in the inner policy's options now
        return partial(from_spec, value, library=library)
    types, called = ACCEPTED.get(annotation, ((object,), "anything"))
    if not isinstance(value, types) or (
        isinstance(value, bool) and bool not in types and object not in types
    ):
        raise BadPolicyOption(option, f"must be {called}, got {value!r:.60}")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:  # also rejects NaN
        raise BadPolicyOption(option, f"must be a number from -{LARGEST:g} to {LARGEST:g}, got {value!r:.60}")
    choices = get_args(annotation) if get_origin(annotation) is Literal else (value,)
    if value not in choices:
        raise BadPolicyOption(option, f"must be one of {', '.join(map(str, choices))}, got {value!r:.60}")
    for bound in (part for part in stated if isinstance(part, Bound) and value not in part):
        raise BadPolicyOption(option, f"must be {bound}, got {value!r:.60}")
    try:
        return json.loads(json.dumps(value))  # the policy's own: it may change it
    except (TypeError, ValueError):
        allowed = "text, numbers, true or false, or lists and tables of these"
        raise BadPolicyOption(option, f"must be {allowed}, got {value!r:.60}") from None
