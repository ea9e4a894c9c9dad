"""Configuration files of the compared proxies, as functions from ports to text.

All proxies do comparable work: one process with one thread, persistent connections on both sides, the less loaded of
two random workers, X-Forwarded-For, -Proto and -Host, a fresh X-Request-ID and Via on every request, no access log,
bodies streamed and not spooled to disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.certificates import SUITE, Certificate
from experiments.platform.instant_worker import LARGE_NAME, SMALL

UNLIMITED_STREAMS = 1_000_000_000
"""Requests after which nginx closes a connection: never within a run."""


def steelyard(
    port: int,
    workers: Sequence[int] | Mapping[str, int],
    policy: str,
    tls: Certificate | None = None,
    head_timeout: float | None = None,
    tables: str = "",
) -> str:
    """Configuration of `balancer serve`. `head_timeout` in seconds; None: the default. `tables` are further tables.

    `workers` are ports in one region, or ports by endpoint id: REGION-NUMBER, the region of the first is home.
    """
    endpoints = (
        workers if isinstance(workers, Mapping) else {f"here-{n}": one for n, one in enumerate(workers)}
    )
    home = next(iter(endpoints)).partition("-")[0]
    lines = [f'listen = "127.0.0.1:{port}"', f'home_region = "{home}"', "seed = 1"]
    lines += [f"policy = {json.dumps(policy)}", tables]
    if tls is not None:
        lines += ["[tls]", f"certificate = {json.dumps(str(tls.certificate))}"]
        lines += [f"key = {json.dumps(str(tls.key))}"]
    if head_timeout is not None:
        lines += ["[timeouts]", f"head = {head_timeout:g}"]
    for name, worker in endpoints.items():
        lines += ["[[endpoints]]", f'id = "{name}"', f'region = "{name.partition("-")[0]}"']
        lines += [f'address = "http://127.0.0.1:{worker}"']
    return "\n".join(lines) + "\n"


def nginx(
    port: int,
    workers: Sequence[int],
    folder: Path,
    tls: Certificate | None = None,
    head_timeout: float | None = None,
    *,
    is_http2: bool = False,
) -> str:
    """Configuration of nginx as a proxy, with a master and one worker process; `is_http2`: it speaks HTTP/2 only."""
    security = "" if tls is None else _nginx_tls(tls)
    patience = "" if head_timeout is None else f"    client_header_timeout {head_timeout:g}s;\n"
    servers = "\n".join(f"    server 127.0.0.1:{worker};" for worker in workers)
    http = f"""\
  upstream workers {{
    random two least_conn;
{servers}
    keepalive 1024;
    keepalive_requests {UNLIMITED_STREAMS};
  }}
  server {{
    listen 127.0.0.1:{port}{" ssl" if tls else ""}{" http2" if is_http2 else ""};
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
    return nginx_process(folder, http)


def _nginx_tls(tls: Certificate) -> str:
    """TLS 1.3 with one cipher suite."""
    return f"""\
    ssl_certificate {tls.certificate};
    ssl_certificate_key {tls.key};
    ssl_protocols TLSv1.3;
    ssl_conf_command Ciphersuites {SUITE};
"""


def nginx_worker(ports: Sequence[int], folder: Path) -> str:
    """Configuration of nginx as the worker, on several ports. `folder` holds the large body."""
    listening = "\n".join(f"    listen 127.0.0.1:{port};" for port in ports)
    http = f"""\
  server {{
{listening}
    root {folder};
    location / {{ default_type text/plain; return 200 "{SMALL}"; }}
    location = /{LARGE_NAME} {{ default_type application/octet-stream; }}
  }}"""
    return nginx_process(folder, http)


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


def haproxy(
    port: int, workers: Sequence[int], tls: Certificate | None = None, head_timeout: float | None = None
) -> str:
    """Configuration of HAProxy with one thread; started in the foreground (`-db`)."""
    patience = "" if head_timeout is None else f"  timeout http-request {head_timeout:g}s\n"
    security = f" ssl crt {tls.both} ssl-min-ver TLSv1.3 ciphersuites {SUITE}" if tls else ""
    servers = "\n".join(f"  server s{n} 127.0.0.1:{worker}" for n, worker in enumerate(workers))
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
  bind 127.0.0.1:{port}{security}
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


def envoy(port: int, workers: Sequence[int]) -> str:
    """Static bootstrap of Envoy as JSON; `--concurrency 1` limits it to one worker thread."""
    route = {
        "name": "all",
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "w"}}],
            }
        ],
        "request_headers_to_add": [_envoy_header("X-Forwarded-Host", "%REQ(:AUTHORITY)%")],
    }
    manager = {
        "@type": _envoy_type("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "front",
        "use_remote_address": True,
        "generate_request_id": True,
        "via": "1.1 envoy",
        "route_config": route,
        "http_filters": [_envoy_part("envoy.filters.http.router", "filters.http.router.v3.Router")],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "front", "address": _envoy_address(port), "filter_chains": [chain]}
    endpoints = [{"endpoint": {"address": _envoy_address(worker)}} for worker in workers]
    cluster = {
        "name": "w",
        "type": "STATIC",
        "connect_timeout": "5s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": "w", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}, indent=1)


def _envoy_type(name: str) -> str:
    return f"type.googleapis.com/envoy.extensions.{name}"


def _envoy_part(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": _envoy_type(kind)}}


def _envoy_header(name: str, value: str) -> dict[str, Any]:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _envoy_address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
