"""Compared peers: Steelyard, other proxies, a simple aiohttp proxy, and a TCP relay as the floor.

A peer is a name, the program it needs, and how to start it between a port and some workers. A peer whose program is
missing is reported as absent.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import certificates, peer_files
from benchmarks.harness.cases import CASES, Case
from benchmarks.harness.peer_files import Site, rendered
from experiments.errors import BadInputError
from experiments.platform.instant_worker import LARGE_BYTES, LARGE_NAME
from experiments.platform.ports import free_ports
from experiments.platform.processes import program
from policies.loading.reference import label_of

WORKER_PORTS = 4
"""Endpoints of every proxy, so that a policy has a choice; one process listens on all of their ports."""

OURS = "steelyard"
OTHER_BUILD = " (other build)"
"""Suffix of the name of the build that `--against` names."""

TRACED = ", traced"
"""Suffix of the name of Steelyard that propagates the trace context."""

TRACING = '[tracing]\nenabled = true\nsample = 0.0\ntrust = "all"'


@dataclass(frozen=True, slots=True)
class Peer:
    """`program` must be on the PATH; None means this Python interpreter. `argv` starts it in the foreground."""

    name: str
    argv: Callable[[Site], list[str]]
    program: str | None = None
    endpoints: int = 0
    connections: int = 0
    """Number of endpoints and of busy clients; 0 means the default."""

    is_for_inference: bool = False
    """It forwards requests for inference only."""

    @property
    def absence(self) -> str:
        """Reason why it cannot be measured here; empty if it can."""
        is_here = self.program is None or shutil.which(self.program) is not None
        return "" if is_here else f"no program '{self.program}' on the PATH"

    def absence_from(self, case: Case) -> str:
        """Reason why it cannot take part in this case; empty if it can."""
        if case.streams and shutil.which("h2load") is None:
            return "no program 'h2load' on the PATH"
        if case.script and shutil.which("wrk") is None:
            return "no program 'wrk' on the PATH"
        if self.is_for_inference and not case.keys:
            return "forwards requests for inference only"
        return self.absence or (certificates.absence() if case.is_tls else "")


def ours(
    policy: str,
    endpoints: int = 0,
    connections: int = 0,
    other_python: str = "",
    *,
    is_traced: bool = False,
    template: str = "",
    keys: Mapping[str, Any] | None = None,
) -> Peer:
    """Steelyard with a policy, started as in production; `other_python` runs the build installed beside it instead.

    `template` has further tables of its configuration, `keys` are further keys.
    """

    def argv(site: Site) -> list[str]:
        more = (TRACING if is_traced else "") + (rendered(template, site) if template else "")
        argv = run_steelyard(site, peer_files.steelyard(site, policy, more, **(keys or {})))
        return [other_python, *argv[1:]] if other_python else argv

    name = f"{OURS} {label_of(policy)}{OTHER_BUILD if other_python else ''}{TRACED if is_traced else ''}"
    if endpoints:
        name = f"{name}, {endpoints} endpoints"
    return Peer(name, argv, endpoints=endpoints, connections=connections)


def run_nginx(site: Site, template: str = "nginx.conf") -> list[str]:
    return ["nginx", "-p", str(site.folder), "-c", site.file("nginx.conf", rendered(template, site))]


def run_haproxy(site: Site, template: str = "haproxy.cfg") -> list[str]:
    return ["haproxy", "-db", "-f", site.file("haproxy.cfg", rendered(template, site))]


def run_steelyard(site: Site, text: str) -> list[str]:
    return [*program("balancer"), "serve", "--config", site.file("steelyard.toml", text)]


def run_envoy(site: Site) -> list[str]:
    """Command line of Envoy with one worker thread."""
    config = site.file("envoy.json", rendered("envoy.json", site))
    quiet = ["--disable-hot-restart", "--log-level", "error"]
    return ["envoy", "-c", config, "--concurrency", "1", *quiet]


def run_vllm_router(site: Site) -> list[str]:
    """Command line of the router of the vLLM project, with its rule for cached prefixes."""
    workers = [f"http://127.0.0.1:{port}" for port in site.workers]
    place = ["--host", "127.0.0.1", "--port", str(site.port), "--prometheus-port", str(next(free_ports(1)))]
    rule = ["--policy", "cache_aware", "--log-level", "error", "--worker-startup-check-interval", "1"]
    return ["vllm-router", *place, "--worker-urls", *workers, *rule]


def program_of_ours(module: str) -> Callable[[Site], list[str]]:
    """Arguments for a program of this package that takes ports."""
    return lambda site: [*program(module), str(site.port), *map(str, site.workers)]


PEERS = {
    "nginx": Peer("nginx", run_nginx, "nginx"),
    "haproxy": Peer("haproxy", run_haproxy, "haproxy"),
    "envoy": Peer("envoy", run_envoy, "envoy"),
    "vllm-router": Peer("vllm-router", run_vllm_router, "vllm-router", is_for_inference=True),
    "aiohttp": Peer("aiohttp session", program_of_ours("benchmarks.harness.aiohttp_session")),
    "relay": Peer("TCP relay", program_of_ours("benchmarks.harness.relay")),
}
NGINX, HAPROXY, SESSION = PEERS["nginx"].name, PEERS["haproxy"].name, PEERS["aiohttp"].name


def chosen(names: Sequence[str], known: Mapping[str, Peer] = PEERS) -> tuple[Peer, ...]:
    """Peers by their short names; `none` alone selects none. Raises `BadInputError`."""
    if list(names) == ["none"]:
        return ()
    for name in names:
        if name not in known:
            raise BadInputError(f"--peers: unknown '{name}'; known: {', '.join(known)}, or none")
    return tuple(known[name] for name in dict.fromkeys(names))


def available(peers: Iterable[Peer], say: Callable[[str], None]) -> tuple[Peer, ...]:
    """Peers that can be measured here; the others are reported with the reason."""
    found = []
    for peer in peers:
        if peer.absence:
            say(f"absent: {peer.name} ({peer.absence})")
        else:
            found.append(peer)
    return tuple(found)


def described(plan: Any) -> dict[str, Any]:
    """Fields of a plan for JSON; of its `peers`, the names."""
    return asdict(plan) | {"peers": [peer.name for peer in plan.peers]}


def require_build(python: str) -> str:
    """Check that a Python has Steelyard installed; returns its path. Raises `BadInputError`."""
    found = shutil.which(python)
    if found is None:
        raise BadInputError(f"--against: no program '{python}'")
    argv = [found, "-P", "-m", "balancer", "--version"]
    if subprocess.run(argv, capture_output=True, check=False, timeout=30).returncode:
        raise BadInputError(f"--against: {found} has no Steelyard installed")
    return found


def worker_argv(site: Site, case: Case) -> list[str]:
    """Arguments of the worker behind all peers: nginx if it is installed and has the answer, otherwise the minimal one
    in Python."""
    if worker_name(case) != NGINX:
        return [*program("experiments.platform.instant_worker"), *map(str, site.workers)]
    (site.folder / LARGE_NAME).write_bytes(bytes(LARGE_BYTES))
    return run_nginx(site, "nginx-worker.conf")


def worker_case(case: Case) -> Case:
    """Case for the worker: always plain HTTP/1.1."""
    return CASES["get"] if case.is_tls or case.streams else case


def worker_name(case: Case) -> str:
    return "a minimal one in Python" if case.is_streamed or PEERS["nginx"].absence else NGINX
