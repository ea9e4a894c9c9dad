"""Files that are no configuration: `check`, SIGHUP and a discovery file answer each with one line for each mistake."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.__main__ import main
from balancer.cluster.discovery.file_source import FileSource
from balancer.config import documents
from balancer.config.keys import keys_of
from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.config.schema.discovery import FileDiscovery
from balancer.config.sources import variable_of
from balancer.configuration import load
from balancer.syntax.printable import one_line
from tests.support.command_line import run_in_process
from tests.support.config_files import refusals
from tests.support.example_counts import examples
from tests.support.root import ROOT

NO_DURATION = 'must be a number of seconds, or a duration such as "250ms", "2s" or "1m"'
ADDRESS = "must be http://host:port, https://host:port or http+unix:///path"
SECRET = "hunter2-is-a-bad-secret"
ENDPOINT = '[[endpoints]]\nid = "a"\naddress = "http://a:1"\n'
REGION = r"string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'"

Make = Callable[[Path], None]


def text(content: str) -> Make:
    """The function that writes the text into a file."""
    return data(content.encode())


def data(content: bytes) -> Make:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


def pipe(path: Path) -> None:
    """Make a pipe that nothing writes to."""
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


CASES: dict[str, tuple[Make, list[str]]] = {
    "directory": (Path.mkdir, ["cannot read FILE: Is a directory"]),
    "missing": (lambda path: None, ["cannot read FILE: No such file or directory"]),
    "symbolic link to itself": (loop, ["cannot read FILE: Too many levels of symbolic links"]),
    "pipe without a writer": (pipe, ["cannot read FILE: its end is not reached within LIMIT s"]),
    "empty": (data(b""), ["FILE: endpoints: is required: [[endpoints]] once or more, or [discovery]"]),
    "byte order mark alone": (
        data(b"\xef\xbb\xbf"),
        ["FILE: endpoints: is required: [[endpoints]] once or more, or [discovery]"],
    ),
    "binary": (data(bytes(range(256)) * 40), ["FILE:2: not TOML: not UTF-8, byte 0x80 (column 118)"]),
    "zeros": (data(b"\0" * 100), ["FILE:1: not TOML: Invalid statement (column 1)"]),
    "UTF-16": (data(ENDPOINT.encode("utf-16")), ["FILE:1: not TOML: not UTF-8, byte 0xff (column 1)"]),
    "Latin-1": (
        data(f'{ENDPOINT}region = "\xe4"\n'.encode("latin-1")),
        ["FILE:4: not TOML: not UTF-8, byte 0xe4 (column 11)"],
    ),
    "Windows": (
        text(f"\ufeff{ENDPOINT}weight = -1\n".replace("\n", "\r\n")),
        ["FILE:4: endpoints.0.weight: input should be greater than 0, got -1"],
    ),
    "carriage returns alone": (
        text(ENDPOINT.replace("\n", "\r")),
        ["FILE:1: not TOML: Expected newline or end of document after a statement (column 14)"],
    ),
    "line separator before the end": (
        text("# \u2028\nlisten ="),
        ["FILE:2: not TOML: Invalid value (column 9)"],
    ),
    "20 MB": (text(ENDPOINT + "# x\n" * (5 << 20)), ["FILE: not TOML: longer than 16 MiB"]),
    "endless": (zeros, ["FILE: not TOML: longer than 16 MiB"]),
    "deep list": (
        text(f"a = {'[' * 5000}{']' * 5000}"),
        ["FILE: not TOML: more than 32 tables or lists inside each other"],
    ),
    "deep header": (
        text(f"[{'a.' * 500}a]\n"),
        ["FILE: not TOML: more than 32 tables or lists inside each other"],
    ),
    "one table too deep": (
        text(f"[policy.{'.'.join(['a'] * documents.MAX_DEPTH)}]\nx = 1\n"),
        ["FILE: not TOML: more than 32 tables or lists inside each other"],
    ),
    "thousands of digits": (
        text(f"{ENDPOINT}[limits]\nqueue = {'9' * 5000}"),
        ["FILE:5: not TOML: a whole number has more than 4300 digits (column 9)"],
    ),
    "thousands of hexadecimal digits": (
        text(f"retries = 0x{'f' * 5000}\n{ENDPOINT}"),
        ["FILE: not TOML: a whole number has more than 4300 digits"],
    ),
    "hundreds of digits": (
        text(f"{ENDPOINT}weight = {'9' * 400}\n[limits]\nqueue = -{'9' * 400}"),
        [
            f"FILE:4: endpoints.0.weight: input should be a valid number, got {'9' * 53}...",
            f"FILE:6: limits.queue: input should be greater than or equal to 0, got -{'9' * 52}...",
        ],
    ),
    "control characters": (
        text(f'home_region = "\\u001b[31m\u202e"\n"\\u001b[31m\\n" = 1\n{ENDPOINT}'),
        [rf"FILE:1: home_region: {REGION}, got '\x1b[31m\u202e'", r"FILE:2: \x1b[31m : is not a known key"],
    ),
    "long key": (text(f"{'a' * 99_999} = 1\n{ENDPOINT}"), [f"FILE:1: {'a' * 57}...: is not a known key"]),
}
"""How to make a file at a path, and the messages about it; FILE is the path."""

TEXTS = f"""
retries = nan; ENDPOINT; weight = inf; [timeouts]; head = -inf; connect = nan ->
    FILE:1: retries: input should be a finite number, got nan |
    FILE:5: endpoints.0.weight: input should be a finite number, got inf |
    FILE:8: timeouts.connect: input should be a finite number, got nan |
    FILE:7: timeouts.head: input should be a finite number, got -inf
retries = 1; retries = 2; ENDPOINT -> FILE:2: not TOML: Cannot overwrite a value (column 12)
ENDPOINT; [limits]; queue = 1; [limits]; queue = 2 ->
    FILE:6: not TOML: Cannot declare ('limits',) twice (column 8)
ENDPOINT; ENDPOINT -> FILE:5: endpoints.1.id: 'a' is used twice; every id must be unique
Retries = 1; retries = 2; ENDPOINT; [Limits]; queue = 1; [limits]; queue = 2 ->
    FILE:1: Retries: is not a known key; keys are in lower case: 'retries' |
    FILE:6: Limits: is not a known key; keys are in lower case: 'limits'
retries = 2026-01-31; ENDPOINT; [timeouts]; head = 07:32:00; connect = 2026-01-31T12:00:00Z ->
    FILE:1: retries: input should be a valid integer, got 2026-01-31 |
    FILE:7: timeouts.connect: {NO_DURATION}, got 2026-01-31T12:00:00+00:00 |
    FILE:6: timeouts.head: {NO_DURATION}, got 07:32:00
ENDPOINT; max_in_flight = 1.5; [home_region]; [hedging]; enabled = 2; share = 'x' ->
    FILE:5: home_region: input should be a valid string, got a table |
    FILE:4: endpoints.0.max_in_flight: input should be a valid integer, got 1.5 |
    FILE:7: hedging.enabled: input should be a valid boolean, got 2 |
    FILE:8: hedging.share: input should be a valid number, got 'x'
"\u0440olicy" = "random"; ENDPOINT -> FILE:1: \u0440olicy: is not a known key; did you mean 'policy'?
\u0440olicy = "random"; ENDPOINT -> FILE:1: not TOML: Invalid statement (column 1)
policy = \u201crandom\u201d; ENDPOINT -> FILE:1: not TOML: Invalid value (column 10)
[[endpoints]]; id = "a"; address = "http://user:{SECRET}@a:1"; [[endpoints]]; id = "b"; adress = "http://b:1";
    [[endpoints]]; address = "user:{SECRET} /@c:1"; weight = 0; [[endpoints]]; id = 5; address = ["d:1"];
    [admin]; token = "{SECRET[:15]}"; [sticky]; cookie = "c"; key = ["{SECRET}"]; [record]; salt = 2026-01-31 ->
    FILE:3: endpoints.0.address: {ADDRESS}, got 'http://…@a:1' |
    FILE:4: endpoints.1.address: is required |
    FILE:6: endpoints.1.adress: is not a known key; did you mean 'address'? |
    FILE:7: endpoints.2.id: is required |
    FILE:8: endpoints.2.address: {ADDRESS}, got '…@c:1' |
    FILE:9: endpoints.2.weight: input should be greater than 0, got 0 |
    FILE:11: endpoints.3.id: input should be a valid string, got 5 |
    FILE:12: endpoints.3.address: input should be a valid string, got a list |
    FILE:17: sticky.key: input should be a valid string |
    FILE:19: record.salt: input should be a valid string |
    FILE:14: admin.token: must have 16 characters or more
"http://user:{SECRET}@a:1" = 1; ENDPOINT -> FILE:1: http://…@a:1: is not a known key
ENDPOINT; [admin]; token = "{SECRET} -> FILE:5: not TOML: Unterminated string (column {len(SECRET) + 10})
ENDPOINT; [admin]; token = "{SECRET}"; token = "{SECRET}" ->
    FILE:6: not TOML: Cannot overwrite a value (column {len(SECRET) + 11})
"""
for written, messages in refusals(TEXTS):
    CASES[written] = text(written.replace("ENDPOINT", ENDPOINT.strip())), messages.split(" | ")


def expected(name: str, path: Path) -> list[str]:
    limit = f"{documents.LONGEST_WAIT:g}"
    return [line.replace("FILE", str(path)).replace("LIMIT", limit) for line in CASES[name][1]]


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_WAIT", 0.05)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("short_wait")
def test_check(name: str, tmp_path: Path) -> None:
    """Exit code 2 and the lines on standard error."""
    path = tmp_path / "balancer.toml"
    CASES[name][0](path)
    done = run_in_process(main, "balancer", "check", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"balancer: {line}" for line in expected(name, path)]
    assert SECRET[:15] not in done.stderr


@pytest.mark.parametrize("name", CASES)
def test_discovery_file(name: str, tmp_path: Path) -> None:
    """The same file as a list of endpoints: at least its path is named, and no secret."""
    path = tmp_path / "regions.toml"
    CASES[name][0](path)
    with pytest.raises(ConfigError) as caught:
        FileSource(FileDiscovery(path=path)).first()
    assert all(line.startswith("discovery.file") for line in caught.value.problems)
    assert str(path) in caught.value.problems[0]
    assert SECRET[:15] not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        (
            "regions.toml",
            '[[endpoints]]\nid = "a"\nadress = "http://a:1"\n[[endpoints]]\naddress = "http://b:1"\nweight = "x"\n',
            [
                "regions.toml:1: endpoints.0.address: is required",
                "regions.toml:3: endpoints.0.adress: is not a known key; did you mean 'address'?",
                "regions.toml:4: endpoints.1.id: is required",
                "regions.toml:6: endpoints.1.weight: input should be a valid number, got 'x'",
            ],
        ),
        (
            "regions.json",
            '[{"id": "a", "adress": "http://a:1"}, {"address": "http://b:1", "weight": null}, 5]',
            [
                "regions.json: endpoints.0.address: is required",
                "regions.json: endpoints.0.adress: is not a known key; did you mean 'address'?",
                "regions.json: endpoints.1.id: is required",
                "regions.json: endpoints.1.weight: input should be a valid number, got null",
                "regions.json: endpoints.2: must be a table, got 5",
            ],
        ),
        (
            "deep.json",
            "[" * 5000 + "]" * 5000,
            ["deep.json: not JSON: more than 32 tables or lists inside each other"],
        ),
        (
            "long.json",
            f"[{'9' * 5000}]",
            ["long.json:1: not JSON: a whole number has more than 4300 digits (column 2)"],
        ),
    ],
)
def test_problems_of_a_discovery_file(tmp_path: Path, name: str, content: str, lines: list[str]) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        FileSource(FileDiscovery(path=tmp_path / name)).first()
    assert list(caught.value.problems) == [f"discovery.file: {tmp_path}/{line}" for line in lines]


def test_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As the shell's `--config <(command)` gives one."""
    read, write = os.pipe()
    os.write(write, ENDPOINT.encode())
    os.close(write)
    try:
        assert load(Path(f"/dev/fd/{read}"), {}).endpoints[0].id == "a"
    finally:
        os.close(read)


def accepted_or_refused(path: Path) -> None:
    """Load the file; `ConfigError`, with a message that can be printed, is the only exception."""
    try:
        load(path, {})
        lines = ["valid"]
    except ConfigError as error:
        lines = [one_line(problem) for problem in error.problems]
    assert lines
    assert all(lines)


EXAMPLE = (ROOT / "examples" / "balancer.toml").read_text(encoding="utf-8").replace("# ", "", 40)
WORDS = """[ ] { } = . , # " ' \\ \\u0041 - 0x _ e [[endpoints]] id address policy name limits queue tls true
nan inf 1 99999 2026-01-31 T12:00:00 a.b discovery file path canary"""
PIECES = st.sampled_from([*WORDS.split(), '"""', "'''", *" \n\t\r\0\x7f\ufeff\u2028\u0440", "\r\n"])
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda content: content.encode("utf-8", "replace")),
    st.lists(PIECES, max_size=60).map(lambda pieces: "".join(pieces).encode()),
    st.tuples(
        st.integers(0, len(EXAMPLE)), st.integers(0, 30), st.lists(PIECES, max_size=6).map("".join)
    ).map(lambda cut: f"{EXAMPLE[: cut[0]]}{cut[2]}{EXAMPLE[cut[0] + cut[1] :]}".encode()),
)


@examples(50)
@given(CONTENTS)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    accepted_or_refused(path)


VARIABLES = [variable_of(place) for place in keys_of(Settings)]
ANYTHING = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=40).map(
    lambda value: value.encode("utf-8", "surrogateescape" if value.isascii() else "ignore").decode(
        "utf-8", "surrogateescape"
    )
)


@examples(40)
@given(
    st.dictionaries(
        st.sampled_from(VARIABLES) | st.from_regex(r"BALANCER_[A-Za-z_0-9]{0,20}", fullmatch=True),
        ANYTHING | st.lists(PIECES, max_size=12).map(lambda pieces: "".join(pieces).replace("\0", "")),
        max_size=4,
    )
)
def test_any_variables(tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.toml"
    path.write_text(ENDPOINT)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        accepted_or_refused(path)
