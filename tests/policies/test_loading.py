"""Policies from a user's file or module: they load, reload, and every mistake in them gives one line with its place."""

from __future__ import annotations

import hashlib
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.platform.terminal import signals_handled
from policies import BadPolicyOption, BrokenPolicy, Policy, RequestFacts, registry
from policies.algorithms.regions import RegionRoundRobin
from policies.contract import Trial, endpoints
from policies.loading.library import Library
from policies.loading.reference import is_reference, label_of, labels_of, located
from policies.loading.source import MAX_SOURCE_BYTES, Source

LAST = """
from policies import Available, EndpointState, RequestFacts


class Last:
    '''Always the last one.'''

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return available[-1]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str = LAST) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def made(name: str, library: Library | None = None, **options: Any) -> Policy:
    return registry.make(name, options, Random(1), library=library or Library())


def picked(policy: Policy) -> str:
    trial = Trial(lambda rng: policy, endpoints(1, 1, 1))
    picked = trial.send().id
    assert trial.router.last_fault is None
    return picked


def problem(name: str, **options: Any) -> str:
    with pytest.raises(BrokenPolicy) as caught:
        made(name, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


# --- what works


def test_class_without_a_constructor_is_a_policy(here: Path) -> None:
    write(here / "mine.py")
    assert picked(made("mine.py:Last")) == "here-2"
    assert picked(made(f"{here}/mine.py:Last")) == "here-2"


@pytest.mark.parametrize(
    ("header", "options", "expected"),
    [
        ("def __init__(self): self.seen = ()", {}, ()),
        ("def __init__(self, rng): self.seen = (type(rng).__name__,)", {}, ("Random",)),
        ("def __init__(self, rng=None): self.seen = (type(rng).__name__,)", {}, ("Random",)),
        ("def __init__(self, *, k: int = 1): self.seen = (k,)", {"k": 3}, (3,)),
        ("def __init__(self, rng, *, k: int = 1): self.seen = (type(rng).__name__, k)", {}, ("Random", 1)),
        ("def __init__(self, *rng): self.seen = (type(rng[0]).__name__,)", {}, ("Random",)),
    ],
)
def test_constructor_may_leave_out_what_it_does_not_need(
    here: Path, header: str, options: dict[str, Any], expected: tuple[object, ...]
) -> None:
    write(here / "mine.py", f"{LAST}\n    {header}\n")
    policy: Any = made("mine.py:Last", **options)
    assert policy.seen == expected


def test_dataclass_and_subclass_of_the_protocol_are_policies(here: Path) -> None:
    write(
        here / "mine.py",
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\nfrom policies import Policy\n\n\n"
        "@dataclass(kw_only=True)\nclass Nth:\n    number: int = 0\n\n"
        "    def pick(self, facts, available, now):\n        return available[self.number]\n\n\n"
        "class First(Policy):\n    def pick(self, facts, available, now):\n        return available[0]\n",
    )
    assert picked(made("mine.py:Nth", number=1)) == "here-1"
    assert picked(made("mine.py:First")) == "here-0"
    with pytest.raises(BadPolicyOption, match=r"policy\.number: must be a whole number"):
        made("mine.py:Nth", number="x")


def test_policy_of_a_file_can_be_the_inner_policy_of_another(here: Path) -> None:
    write(here / "mine.py")
    policy = made("region-round-robin", inner="mine.py:Last")
    assert isinstance(policy, RegionRoundRobin)
    assert picked(policy) == "here-2"


def test_installed_module_is_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here / "installed_policies" / "__init__.py", "")
    write(here / "installed_policies" / "last.py")
    monkeypatch.syspath_prepend(str(here))
    library = Library()
    assert picked(made("installed_policies.last:Last", library)) == "here-2"
    assert list(library.versions) == [str(here / "installed_policies" / "last.py")]
    assert library.sources == []  # another process imports it by itself
    for name in ("installed_policies.last", "installed_policies"):
        monkeypatch.delitem(sys.modules, name)


# --- files and the modules beside them


def test_version_is_the_hash_of_the_file(here: Path) -> None:
    """As `sha256sum` prints it; modules beside the file count too."""
    path = write(here / "mine.py")
    library = Library()
    made("mine.py:Last", library)
    assert library.versions == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:12]}
    write(here / "helper.py", "A = 1\n")
    write(path, f"import helper\n{LAST}")
    first, second = Library(), Library()
    made("mine.py:Last", first)
    write(here / "helper.py", "A = 2\n")
    made("mine.py:Last", second)
    assert first.versions != second.versions


def test_library_reads_a_file_once_and_a_new_one_reads_it_again(here: Path) -> None:
    path = write(here / "mine.py")
    library = Library()
    assert picked(made("mine.py:Last", library)) == "here-2"
    write(path, LAST.replace("[-1]", "[-3]"))  # the same size, within the same second
    assert picked(made("mine.py:Last", library)) == "here-2"
    assert picked(made("mine.py:Last")) == "here-0"


def test_modules_beside_the_file_are_imported_and_read_again(here: Path) -> None:
    """A module, a package, a relative import and one inside a function; nothing stays behind."""
    write(here / "place.py", "AT = -1\n")
    write(here / "deeper" / "__init__.py", "")
    write(here / "deeper" / "inner.py", "from .other import ZERO\nimport place\n")
    write(here / "deeper" / "other.py", "ZERO = 0\n")
    text = LAST.replace("available[-1]", "available[place.AT + deeper.inner.ZERO + late()]")
    write(
        here / "mine.py",
        "import place\nimport deeper.inner\n\n\ndef late():\n    import lately\n    return lately.ZERO\n"
        + text,
    )
    write(here / "lately.py", "ZERO = 0\n")
    before, path_before, finders_before = set(sys.modules), list(sys.path), list(sys.meta_path)
    assert picked(made("mine.py:Last")) == "here-2"
    write(here / "place.py", "AT = -2\n")
    assert picked(made("mine.py:Last")) == "here-1"
    assert {name for name in set(sys.modules) - before if not name.startswith("encodings")} == set()
    assert (sys.path, sys.meta_path) == (path_before, finders_before)
    assert not list(here.rglob("__pycache__"))


def test_helpers_of_the_same_name_do_not_mix(here: Path) -> None:
    for folder, at in (("one", 0), ("two", 1)):
        write(here / folder / "helper.py", f"AT = {at}\n")
        write(here / folder / "mine.py", "import helper\n" + LAST.replace("[-1]", "[helper.AT]"))
    library = Library()
    assert picked(made("one/mine.py:Last", library)) == "here-0"
    assert picked(made("two/mine.py:Last", library)) == "here-1"


def test_module_beside_the_file_is_found_where_its_directory_is_on_the_path(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m balancer` has the working directory there; the module is private all the same."""
    monkeypatch.syspath_prepend(str(here))
    write(here / "helper_on_path.py", "AT = 0\n")
    write(here / "mine.py", "import helper_on_path\n" + LAST.replace("[-1]", "[helper_on_path.AT]"))
    assert picked(made("mine.py:Last")) == "here-0"
    assert "helper_on_path" not in sys.modules


def test_file_with_the_name_of_a_known_module_hides_nothing(here: Path) -> None:
    write(here / "json.py", "raise RuntimeError('hides the standard library')\n")
    write(here / "colorsys.py", "raise RuntimeError('hides the standard library')\n")
    write(here / "policies.py", "import json\nimport colorsys\n" + LAST)
    assert picked(made("policies.py:Last")) == "here-2"


def test_source_travels_to_another_library(here: Path) -> None:
    """As to a sibling process: the version is the same, whatever the disk holds by then."""
    write(here / "helper.py", "AT = 0\n")
    path = write(here / "mine.py", "import helper\n" + LAST.replace("[-1]", "[helper.AT]"))
    library = Library()
    made("mine.py:Last", library)
    sent = [source.as_dict() for source in library.sources]
    write(path, "broken(\n")
    (here / "helper.py").unlink()
    other = Library(map(Source.of, sent))
    assert picked(made("mine.py:Last", other)) == "here-0"
    assert other.versions == library.versions


def test_given_source_replaces_a_loaded_one(here: Path) -> None:
    path = write(here / "mine.py")
    library = Library()
    assert picked(made("mine.py:Last", library)) == "here-2"
    library.give([Source(str(path), {"mine.py": LAST.replace("[-1]", "[0]").encode()})])
    assert picked(made("mine.py:Last", library)) == "here-0"


# --- mistakes

INIT = LAST + "\n    def __init__(self"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nclass Last\n", "{file}:2: SyntaxError: expected ':'"),
        ("\x00", "{file}: "),
        ("# coding: nonsense\n", "{file}:1: SyntaxError: unknown encoding: nonsense"),
        ("\n\n1 / 0\n", "{file}:3: ZeroDivisionError: division by zero"),
        ("import statistics\nstatistics.mean([])\n", "{file}:2: StatisticsError: mean requires"),
        (
            "import nothing_of_that_name\n",
            "{file}:1: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("import sys\nsys.exit(3)\n", "{file}:2: SystemExit: 3"),
        ("def f(): f()\nf()\n", "{file}:1: RecursionError: maximum recursion depth exceeded"),
        (LAST + "\n    @property\n    def tick(self):\n        {}['x']\n", "{file}:13: KeyError: 'x'"),
        (
            LAST + "\n    def __getattr__(self, name):\n        raise ValueError(name)\n",
            "{file}:12: ValueError: ",
        ),
        ("raise BaseException('a\\nb')\n", "{file}:1: BaseException: a b"),
        ("def Last(rng): ...\n", "{file}:1: 'Last' must be a class, and is a function"),
        ("\nLast = 3\n", "{file}:2: 'Last' must be a class, and is a int"),
        (
            "class Lost:\n  def pick(self, f, a, n): ...\n",
            "{file}: has no class 'Last'; its policies: Lost; did you",
        ),
        ("", "{file}: has no class 'Last'; it has no class with a method pick"),
        ("\nclass Last: ...\n", "{file}:2: Last has no method pick(self, facts, available, now)"),
        ("from policies import Policy\nclass Last(Policy): ...\n", "{file}:2: Last has no method pick"),
        (
            "class Last:\n  def pick(self, available): ...\n",
            "{file}:2: Last.pick must be a method pick(self, facts, available, now)",
        ),
        ("class Last:\n  pick = 3\n", "{file}:1: Last.pick must be a method"),
        (
            "class Last:\n  async def pick(self, facts, available, now): ...\n",
            "{file}:2: Last.pick must not be async: a policy never waits",
        ),
        (
            "class Last:\n  def pick(self, facts, available, now): ...\n  def tick(self): ...\n",
            "{file}:3: Last.tick must be a method tick(self, now)",
        ),
        (
            INIT + ", a, b): ...\n",
            "{file}:11: Last() needs a, b; its constructor must be",
        ),
        (
            INIT + ", k: float): ...\n",
            "{file}:11: Last() takes 'k' by position; options follow",
        ),
        (
            INIT + ", k=2.0): ...\n",
            "{file}:11: Last() takes 'k' by position; options follow",
        ),
        (INIT + "):\n        {}['x']\n", "Last() failed: {file}:12: KeyError: 'x'"),
        (INIT + "):\n        exit(0)\n", "Last() failed: {file}:12: SystemExit: 0"),
        (
            "from __future__ import annotations\n" + INIT + ", rng: Random, *, k: Flaot = 1.0): ...\n",
            "{file}:12: its options cannot be read: name 'Flaot' is not defined",
        ),
        ("class Last(dict):\n  def pick(self): ...\n", "its options cannot be read: no signature found"),
    ],
)
def test_mistake_in_a_file_gives_one_line_with_its_place(here: Path, text: str, message: str) -> None:
    path = write(here / "mine.py", text)
    assert problem("mine.py:Last").startswith(message.format(file=path))
    assert not any(name.startswith("steelyard_policy_") for name in sys.modules)


def test_mistake_in_a_module_beside_the_file_is_placed_there(here: Path) -> None:
    helper = write(here / "helper.py", "\nraise ValueError('no')\n")
    path = write(here / "mine.py", "import helper\n" + LAST)
    assert problem("mine.py:Last") == f"{path}: {helper}:2: ValueError: no"
    write(helper, "def (:\n")
    assert problem("mine.py:Last").startswith(f"{path}: {helper}:1: SyntaxError: ")


def test_file_in_another_encoding_gives_its_line(here: Path) -> None:
    """Unless the file states its encoding."""
    (here / "latin.py").write_bytes(("#\nx = 'café'\n" + LAST).encode("latin-1"))
    assert problem("latin.py:Last").startswith(
        f"{here}/latin.py:2: SyntaxError: (unicode error) 'utf-8' codec"
    )
    (here / "stated.py").write_bytes(("# coding: latin-1\n# café\n" + LAST).encode("latin-1"))
    assert picked(made("stated.py:Last")) == "here-2"


def test_ctrl_c_while_a_file_loads_ends_the_command(here: Path) -> None:
    write(here / "mine.py", "import signal\nsignal.raise_signal(signal.SIGINT)\n" + LAST)
    handling = signals_handled(
        signal.default_int_handler, [signal.SIGINT]
    )  # an event loop leaves its own behind
    with handling, pytest.raises(KeyboardInterrupt):
        made("mine.py:Last")


@pytest.mark.parametrize(
    ("pick", "fault"),
    [
        ("raise SystemExit(3)", "Last raised SystemExit(3)"),
        ("return self.pick(facts, available, now)", "Last raised RecursionError('maximum recursion depth"),
        ("return None", "Last returned what is no endpoint: "),
        ("return 'here-0'", "Last returned what is no endpoint: "),
        ("raise ValueError('x' * 999)", "Last raised ValueError('xxxx"),
        ("raise Unprintable", "Last raised Unprintable"),
        ("import json; json.loads('{')", "Last raised JSONDecodeError("),
    ],
)
def test_fault_of_a_pick_is_one_line_and_loses_no_request(here: Path, pick: str, fault: str) -> None:
    write(
        here / "mine.py",
        "class Unprintable(Exception):\n    def __repr__(self): raise ValueError\n\n\n"
        f"class Last:\n    def pick(self, facts, available, now):\n        {pick}\n\n"
        "    def tick(self, now):\n        raise SystemExit(4)\n",
    )
    policy = made("mine.py:Last")
    trial = Trial(lambda rng: policy, endpoints(1, 1, 1))
    trial.send()
    found = str(trial.router.last_fault)
    assert found.startswith(f"policy {fault}")
    assert found.endswith(f" at {here / 'mine.py'}:7") == ("raised" in fault)
    assert len(found) < 330 + len(str(here / "mine.py"))
    assert trial.router.fallback_picks == 1
    trial.router.tick()
    assert trial.router.last_fault == f"policy Last raised SystemExit(4) at {here / 'mine.py'}:10 in tick"


def test_file_that_cannot_be_read_is_named(here: Path) -> None:
    assert problem("gone.py:Last") == f"{here}/gone.py: No such file or directory"
    (here / "folder.py").mkdir()
    assert problem("folder.py:Last") == f"{here}/folder.py: Is a directory"
    write(here / "large.py", "#" * (MAX_SOURCE_BYTES + 1))
    assert (
        problem("large.py:Last")
        == f"{here}/large.py: a policy and the modules beside it may have 1024 KiB together"
    )
    assert "null byte" in problem("a\0b.py:Last")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py", "'mine.py' must name the class too, as in mine.py:Tempered"),
        ("mine.py:", "'mine.py:' must be FILE.py:CLASS or MODULE:CLASS"),
        (
            '{"name": "x"',
            """'{"name": "x"' is not valid JSON, or options cannot be given here""",
        ),
        (":Last", "':Last' must be FILE.py:CLASS or MODULE:CLASS"),
        ("mine.py:a.b", "'mine.py:a.b' must be FILE.py:CLASS or MODULE:CLASS"),
        ("nothing_of_that_name:Last", "no module 'nothing_of_that_name' is installed"),
        ("beside:Last", "no module 'beside' is installed; for the file write beside.py:CLASS"),
        ("json.nothing:Last", "json.nothing: ModuleNotFoundError: No module named 'json.nothing'"),
    ],
)
def test_wrong_reference_says_what_is_right(here: Path, name: str, message: str) -> None:
    write(here / "beside.py")
    assert problem(name) == message


def test_wrong_option_is_named(here: Path) -> None:
    write(here / "mine.py", LAST + "\n    def __init__(self, *, k: int = 1): ...\n")
    with pytest.raises(
        BadPolicyOption, match=r"^policy\.q: 'mine\.py:Last' has no such option; its options: k$"
    ):
        made("mine.py:Last", q=1)


def test_failed_load_is_tried_again(here: Path) -> None:
    """A mistake is corrected while the same process runs."""
    path = write(here / "mine.py", "1 / 0\n")
    library = Library()
    with pytest.raises(BrokenPolicy):
        made("mine.py:Last", library)
    write(path)
    assert picked(made("mine.py:Last", library)) == "here-2"


# --- references


def test_paths_become_absolute_wherever_a_policy_is_named() -> None:
    spec = {
        "name": "a.py:A",
        "inner": {"name": "sub/b.py:B", "text": "no.py"},
        "canary": {"name": "/c.py:C", "share": 0.1},
        "shadow": ["../d.py:D", "random", "module:E"],
    }
    assert located(spec, "/base/dir") == {
        "name": "/base/dir/a.py:A",
        "inner": {"name": "/base/dir/sub/b.py:B", "text": "no.py"},
        "canary": {"name": "/c.py:C", "share": 0.1},
        "shadow": ["/base/d.py:D", "random", "module:E"],
    }


def test_labels_are_short_and_differ() -> None:
    """Without commas and slashes, so that they can be file names and separated by commas."""
    names = ["/x/a.py:Tempered", "random", "/x/b,c.py:Tempered", "/y/b,c.py:Tempered", "my.module:Tempered"]
    assert labels_of(names) == ["Tempered", "random", "b-c.Tempered", "b-c.Tempered-2", "module.Tempered"]
    assert all(len(label) <= 40 for label in labels_of(["a.py:" + "X" * 99, "b.py:" + "X" * 99]))
    assert label_of("mine.py") == "mine.py"


def test_names_of_the_registry_are_no_references() -> None:
    assert not any(map(is_reference, registry.known()))
    assert RequestFacts().key is None
