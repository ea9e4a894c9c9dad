"""Configuration files of the compared proxies, as functions from a placement to text.

All proxies do comparable work: one process with one thread, persistent connections on both sides, the less loaded of
two random workers, X-Forwarded-For, -Proto and -Host, a fresh X-Request-ID and Via on every request, no access log,
bodies streamed and not spooled to disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.certificates import SUITE, Certificate
from experiments.measured.process_config import toml_document
from experiments.platform.instant_worker import LARGE_NAME, SMALL

UNLIMITED_STREAMS = 1_000_000_000
"""Requests after which nginx closes a connection: never within a run."""


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


def nginx(site: Site) -> str:
    """Configuration of nginx as a proxy, with a master and one worker process; with `is_http2` it speaks only that."""
    tls, is_http2 = site.certificate, site.is_http2
    security = "" if tls is None else _nginx_tls(tls)
    patience = "" if site.head_timeout is None else f"    client_header_timeout {site.head_timeout:g}s;\n"
    servers = "\n".join(f"    server 127.0.0.1:{worker};" for worker in site.workers)
    http = f"""\
  upstream workers {{
    random two least_conn;
{servers}
    keepalive 1024;
    keepalive_requests {UNLIMITED_STREAMS};
  }}
  server {{
    listen 127.0.0.1:{site.port}{" ssl" if tls else ""}{" http2" if is_http2 else ""};
{security}{patience}    client_body_buffer_size 64k;
    location / {{
      proxy_pass http://workers;
      proxy_http_version 1.1;
      proxy_request_buffering off;
      proxy_max_temp_file_size 0;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Request-ID $request_id;
      proxy_set_header Via "1.1 nginx";
    }}
  }}"""
    return nginx_process(site.folder, http)


def _nginx_tls(tls: Certificate) -> str:
    """TLS 1.3 with one cipher suite."""
    return f"""\
    ssl_certificate {tls.certificate};
    ssl_certificate_key {tls.key};
    ssl_protocols TLSv1.3;
    ssl_conf_command Ciphersuites {SUITE};
"""


def nginx_worker(site: Site) -> str:
    """Configuration of nginx as the worker, on all of its ports; the folder holds the large body."""
    listening = "\n".join(f"    listen 127.0.0.1:{port};" for port in site.workers)
    http = f"""\
  server {{
{listening}
    root {site.folder};
    location / {{ default_type text/plain; return 200 "{SMALL}"; }}
    location = /{LARGE_NAME} {{ default_type application/octet-stream; }}
  }}"""
    return nginx_process(site.folder, http)


def nginx_process(folder: Path, http: str) -> str:
    """nginx around the directives `http`: foreground, one serving process, all files in `folder`."""
    spools = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"  {name}_temp_path {folder / name};" for name in spools)
    owner = "user root;\n" if os.geteuid() == 0 else ""  # else the worker process cannot enter `folder`
    return f"""\
{owner}daemon off;
worker_processes 1;
pid {folder / "nginx.pid"};
error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_timeout 600s;
  keepalive_requests {UNLIMITED_STREAMS};
{temporary}
{http}
}}
"""


def haproxy(site: Site) -> str:
    """Configuration of HAProxy with one thread; started in the foreground (`-db`)."""
    tls = site.certificate
    patience = "" if site.head_timeout is None else f"  timeout http-request {site.head_timeout:g}s\n"
    security = f" ssl crt {tls.both} ssl-min-ver TLSv1.3 ciphersuites {SUITE}" if tls else ""
    servers = "\n".join(f"  server s{n} 127.0.0.1:{worker}" for n, worker in enumerate(site.workers))
    return f"""\
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
{patience}  option http-keep-alive
  http-reuse always
frontend front
  bind 127.0.0.1:{site.port}{security}
  http-request set-header X-Forwarded-For %[src]
  http-request set-header X-Forwarded-Proto {"https" if tls else "http"}
  http-request set-header X-Forwarded-Host %[req.hdr(Host)]
  http-request set-header X-Request-ID %[uuid()]
  http-request set-header Via "1.1 haproxy"
  default_backend workers
backend workers
  balance random(2)
{servers}
"""


def envoy(site: Site) -> str:
    """Static bootstrap of Envoy as JSON; `--concurrency 1` limits it to one worker thread."""

    def typed(name: str, kind: str, **fields: Any) -> dict[str, Any]:
        type_ = f"type.googleapis.com/envoy.extensions.{kind}"
        return {"name": f"envoy.filters.{name}", "typed_config": {"@type": type_, **fields}}

    def address(port: int) -> dict[str, Any]:
        return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}

    route = {"match": {"prefix": "/"}, "route": {"cluster": "w"}}
    host = {"header": {"key": "X-Forwarded-Host", "value": "%REQ(:AUTHORITY)%"}}
    manager = typed(
        "network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="front",
        use_remote_address=True,
        generate_request_id=True,
        via="1.1 envoy",
        route_config={
            "name": "all",
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
            "request_headers_to_add": [host | {"append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
        },
        http_filters=[typed("http.router", "filters.http.router.v3.Router")],
    )
    listener = {"name": "front", **address(site.port), "filter_chains": [{"filters": [manager]}]}
    endpoints = [{"endpoint": address(worker)} for worker in site.workers]
    cluster = {
        "name": "w",
        "type": "STATIC",
        "connect_timeout": "5s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": "w", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}, indent=1)
