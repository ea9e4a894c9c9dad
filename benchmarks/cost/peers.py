"""What is compared: our unit, the proxies that everybody knows, the obvious Python way, and the floor.

Rule of this file: a peer is a name, the program it needs, and how to start it between a port and some workers. A peer
whose program is not there is said to be absent, never left out in silence.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.cost import certificates, peer_files
from benchmarks.cost.cases import CASES, Case
from benchmarks.cost.certificates import Certificate
from experiments.errors import BadInputError
from experiments.processes import program

OURS = "steelyard"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a peer is put: a port to listen on, the workers' ports, a folder for its files."""

    port: int
    workers: tuple[int, ...]
    folder: Path
    certificate: Certificate | None = None
    """To be shown to clients; None means plain HTTP."""

    head_timeout: float | None = None
    """Seconds that a client's head may take; None means what the peer does by itself. Envoy has its own."""

    def file(self, name: str, text: str) -> str:
        """Write a file; returns its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


@dataclass(frozen=True, slots=True)
class Peer:
    """`program` must be on the PATH; None means our own interpreter. `argv` starts it in the foreground."""

    name: str
    argv: Callable[[Site], list[str]]
    program: str | None = None
    version: str = ""
    """The option that makes the program say its version."""

    endpoints: int = 0
    connections: int = 0
    """How many it has, and how many of its clients are busy; 0 means as many as the others."""

    @property
    def absence(self) -> str:
        """Why it cannot be measured here; empty when it can."""
        is_here = self.program is None or shutil.which(self.program) is not None
        return "" if is_here else f"no program '{self.program}' on the PATH"

    def absence_from(self, case: Case) -> str:
        """Why it cannot take part in this case; empty when it can."""
        if self.absence or not case.is_tls:
            return self.absence
        return certificates.absence() or (without_tls() if self.is_ours else "")

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)


@cache
def without_tls() -> str:
    """Why our unit does not take the section [tls] of its configuration; empty when it does."""
    with tempfile.TemporaryDirectory(prefix="steelyard-") as name:
        folder = Path(name)
        text = peer_files.steelyard(8080, (8081,), "random", certificates.certificate_in(folder))
        file = Site(8080, (8081,), folder).file("steelyard.toml", text)
        argv = [*program("balancer"), "check", file]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    return " ".join(done.stderr.split()) if done.returncode else ""


def ours(policy: str, endpoints: int = 0, connections: int = 0) -> Peer:
    """The unit as an operator starts it."""

    def argv(site: Site) -> list[str]:
        text = peer_files.steelyard(site.port, site.workers, policy, site.certificate, site.head_timeout)
        return [*program("balancer"), "serve", "--config", site.file("steelyard.toml", text)]

    name = f"{OURS} {policy}"
    if endpoints:
        name = f"{name}, {endpoints} endpoints"
    return Peer(name, argv, endpoints=endpoints, connections=connections)


def nginx_argv(site: Site) -> list[str]:
    text = peer_files.nginx(site.port, site.workers, site.folder, site.certificate, site.head_timeout)
    return ["nginx", "-p", str(site.folder), "-c", site.file("nginx.conf", text)]


def haproxy_argv(site: Site) -> list[str]:
    text = peer_files.haproxy(site.port, site.workers, site.certificate, site.head_timeout)
    return ["haproxy", "-db", "-f", site.file("haproxy.cfg", text)]


def envoy_argv(site: Site) -> list[str]:
    config = site.file("envoy.json", peer_files.envoy(site.port, site.workers))
    quiet = ["--disable-hot-restart", "--log-level", "error"]
    return ["envoy", "-c", config, "--concurrency", "1", *quiet]


def program_of_ours(module: str) -> Callable[[Site], list[str]]:
    """A program of this package that takes ports."""
    return lambda site: [*program(module), str(site.port), *map(str, site.workers)]


PEERS = {
    "nginx": Peer("nginx", nginx_argv, "nginx", "-v"),
    "haproxy": Peer("haproxy", haproxy_argv, "haproxy", "-v"),
    "envoy": Peer("envoy", envoy_argv, "envoy", "--version"),
    "aiohttp": Peer("aiohttp session", program_of_ours("benchmarks.cost.aiohttp_session")),
    "relay": Peer("TCP relay", program_of_ours("benchmarks.cost.relay")),
}
NGINX, HAPROXY, SESSION = PEERS["nginx"].name, PEERS["haproxy"].name, PEERS["aiohttp"].name


def chosen(names: Sequence[str]) -> tuple[Peer, ...]:
    """Peers by their short names; `none` alone means nobody. Raises BadInputError."""
    if list(names) == ["none"]:
        return ()
    for name in names:
        if name not in PEERS:
            raise BadInputError(f"--peers: unknown '{name}'; known: {', '.join(PEERS)}, or none")
    return tuple(PEERS[name] for name in dict.fromkeys(names))


def worker_argv(site: Site) -> list[str]:
    """The worker behind all of them: nginx if it is there, else the least one in Python."""
    if PEERS["nginx"].absence:
        return [*program("benchmarks.cost.worker"), *map(str, site.workers)]
    (site.folder / peer_files.LARGE_NAME).write_bytes(bytes(peer_files.LARGE_BYTES))
    text = peer_files.nginx_worker(site.workers, site.folder)
    return ["nginx", "-p", str(site.folder), "-c", site.file("worker.conf", text)]


def worker_case(case: Case) -> Case:
    """What the worker answers: it speaks plain HTTP, whatever the proxy before it speaks."""
    return CASES["get"] if case.is_tls else case


def worker_name() -> str:
    return "a minimal one in Python" if PEERS["nginx"].absence else "nginx"
