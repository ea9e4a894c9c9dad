"""Configuration files of the compared proxies, as functions from a placement to text.

All proxies do comparable work: one process with one thread, persistent connections on both sides, the less loaded of
two random workers, X-Forwarded-For, -Proto and -Host, a fresh X-Request-ID and Via on every request, no access log,
bodies streamed and not spooled to disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from benchmarks.harness.certificates import SUITE, Certificate
from experiments.measured.process_config import toml_document
from experiments.platform.instant_worker import LARGE_NAME, SMALL


@dataclass(frozen=True, slots=True)
class Site:
    """Placement of a peer: its port, the workers' ports, a folder for its files."""

    port: int
    workers: tuple[int, ...]
    folder: Path
    certificate: Certificate | None = None
    """Server certificate; None means plain HTTP."""

    head_timeout: float | None = None
    """Timeout for a client's request head in seconds; None means the peer's default. Not applied to Envoy."""

    is_http2: bool = False
    """Clients speak HTTP/2 by prior knowledge; Steelyard and HAProxy find out themselves."""

    is_streamed: bool = False
    """Answers come in chunks: HAProxy gets `option http-no-delay`, nginx a field of the response against buffers."""

    def file(self, name: str, text: str) -> str:
        """Write a file; returns its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


def steelyard(
    site: Site, policy: str, tables: str = "", workers: Mapping[str, int] | None = None, **keys: object
) -> str:
    """Configuration of `balancer serve`. `tables` are further tables as text, `keys` further keys.

    `workers` are ports by endpoint id: REGION-NUMBER, the region of the first is home; None: those of the site, in one
    region.
    """
    endpoints = workers or {f"here-{number}": port for number, port in enumerate(site.workers)}
    regions = {name: name.partition("-")[0] for name in endpoints}
    keys |= {
        "listen": f"127.0.0.1:{site.port}",
        "home_region": next(iter(regions.values())),
        "seed": 1,
        "policy": policy,
        "endpoints": [
            {"id": name, "region": regions[name], "address": f"http://127.0.0.1:{port}"}
            for name, port in endpoints.items()
        ],
    }
    if tls := site.certificate:
        keys["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    if site.head_timeout is not None:
        keys["timeouts"] = {"head": site.head_timeout}
    return toml_document(keys) + tables


TEMPLATES = Environment(
    loader=PackageLoader("benchmarks.harness"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def rendered(name: str, site: Site) -> str:
    """Configuration of another proxy, or of the worker, from the template of this name."""
    values = {"suite": SUITE, "small": SMALL, "large_name": LARGE_NAME, "is_root": os.geteuid() == 0}
    return TEMPLATES.get_template(name).render(site=site, **values)
