"""What is compared: our unit, the proxies that everybody knows, the obvious Python way, and the floor.

Rule of this file: a peer is a name, the program it needs, and how to start it between a port and some workers. A peer
whose program is not there is said to be absent, never left out in silence.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import bench_config
from experiments.errors import BadInputError
from experiments.processes import program

OURS = "steelyard"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a peer is put: a port to listen on, the workers' ports, a folder for its files."""

    port: int
    workers: tuple[int, ...]
    folder: Path

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

    @property
    def absence(self) -> str:
        """Why it cannot be measured here; empty when it can."""
        is_here = self.program is None or shutil.which(self.program) is not None
        return "" if is_here else f"no program '{self.program}' on the PATH"

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)


def ours(policy: str) -> Peer:
    """The unit as an operator starts it, in pure Python."""

    def argv(site: Site) -> list[str]:
        text = bench_config.steelyard(site.port, site.workers, policy)
        return [*program("balancer"), "serve", "--config", site.file("steelyard.toml", text)]

    return Peer(f"{OURS} {policy}", argv)


def nginx_argv(site: Site) -> list[str]:
    text = bench_config.nginx(site.port, site.workers, site.folder)
    return ["nginx", "-p", str(site.folder), "-c", site.file("nginx.conf", text)]


def haproxy_argv(site: Site) -> list[str]:
    return ["haproxy", "-db", "-f", site.file("haproxy.cfg", bench_config.haproxy(site.port, site.workers))]


def envoy_argv(site: Site) -> list[str]:
    config = site.file("envoy.json", bench_config.envoy(site.port, site.workers))
    quiet = ["--disable-hot-restart", "--log-level", "error"]
    return ["envoy", "-c", config, "--concurrency", "1", *quiet]


def program_of_ours(module: str) -> Callable[[Site], list[str]]:
    """A program of this package that takes ports."""
    return lambda site: [*program(module), str(site.port), *map(str, site.workers)]


PEERS = {
    "nginx": Peer("nginx", nginx_argv, "nginx", "-v"),
    "haproxy": Peer("haproxy", haproxy_argv, "haproxy", "-v"),
    "envoy": Peer("envoy", envoy_argv, "envoy", "--version"),
    "aiohttp": Peer("aiohttp session", program_of_ours("experiments.bench_aiohttp")),
    "relay": Peer("TCP relay", program_of_ours("experiments.bench_relay")),
}
NGINX, SESSION = PEERS["nginx"].name, PEERS["aiohttp"].name


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
        return [*program("experiments.bench_worker"), *map(str, site.workers)]
    (site.folder / bench_config.LARGE_NAME).write_bytes(bytes(bench_config.LARGE_BYTES))
    text = bench_config.nginx_worker(site.workers, site.folder)
    return ["nginx", "-p", str(site.folder), "-c", site.file("worker.conf", text)]


def worker_name() -> str:
    return "a minimal one in Python" if PEERS["nginx"].absence else "nginx"
