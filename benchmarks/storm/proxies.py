"""Configurations for a storm of Steelyard, nginx and HAProxy, each the best known to the authors.

Functions from a placement to configuration text; every relevant setting has its reason in a comment. No configuration
knows when a fault comes or which worker it strikes. Those of Steelyard are in `harness/verified/load_process.py`.
"""

from __future__ import annotations

from benchmarks.harness.peer_files import UNLIMITED_STREAMS, Site, nginx_process
from benchmarks.harness.peers import OURS, Peer, run_haproxy, run_nginx, run_steelyard
from benchmarks.harness.verified.load_process import CHECK_PATH, steelyard
from policies.loading.reference import label_of


def nginx(site: Site) -> str:
    """Configuration of open-source nginx, which has passive health checks only."""
    servers = "\n".join(
        f"    server 127.0.0.1:{worker} max_fails=1 fail_timeout=1s;" for worker in site.workers
    )
    # `max_fails=1`, `fail_timeout=1s`: the first failure takes a server out, and a request tries it again a second
    # later; with the default of 10 s no server would be back within the bound. `next_upstream`: everything that can be
    # repeated; POSTs are not repeated once sent (`non_idempotent` is off). One upstream for all: nginx does not count a
    # POST's 503 as a failure, so only GETs show which server POSTs should avoid. `read_timeout`: the only way for a GET
    # to leave a worker that hangs; a POST has no alternative and waits. Request bodies are buffered
    # (`proxy_request_buffering` on, the default): otherwise none could be repeated. `least_conn`: it notices
    # connections piling up at a worker that hangs; round-robin does not.
    http = f"""\
  upstream workers {{
    zone workers 256k;
    least_conn;
{servers}
    keepalive 256;
    keepalive_timeout 4s;
    keepalive_requests {UNLIMITED_STREAMS};
  }}
  server {{
    listen 127.0.0.1:{site.port};
    client_body_buffer_size 64k;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $http_host;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_connect_timeout 500ms;
    proxy_next_upstream error timeout invalid_header http_502 http_503 http_504;
    proxy_next_upstream_tries 4;
    proxy_next_upstream_timeout 8s;
    error_page 418 = @posts;
    location / {{
      if ($request_method = POST) {{ return 418; }}
      proxy_read_timeout 1s;
      proxy_pass http://workers;
    }}
    location @posts {{
      proxy_read_timeout 9s;
      proxy_pass http://workers;
    }}
  }}"""
    return nginx_process(site.folder, http)


def haproxy(site: Site) -> str:
    """Configuration of HAProxy with active and passive health checks, and retries."""
    # `inter`, `fall`, `rise`: checked four times a second, out after two failures, back after one success. `observe
    # layer7`, `error-limit`, `on-error`: request results count too, and take a server out at once. `retry-on` with
    # `redispatch 1`: every retry goes to another server; a POST is never retried once sent. POSTs have a backend of
    # their own that never reuses a connection (`http-server-close`, `http-reuse never`) and tracks the checks of the
    # first backend. `timeout server`: as nginx's `read_timeout`, and the limit for `response-timeout`; POSTs wait here
    # too.
    servers = "\n".join(f"  server s{n} 127.0.0.1:{worker}" for n, worker in enumerate(site.workers))
    tracking = "\n".join(
        f"  server s{n} 127.0.0.1:{worker} track gets/s{n}" for n, worker in enumerate(site.workers)
    )
    return f"""\
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 500ms
  timeout client 600s
  timeout server 1s
  timeout check 250ms
  timeout http-keep-alive 600s
  option http-keep-alive
  option redispatch 1
  retries 3
  retry-on conn-failure empty-response junk-response response-timeout 502 503 504
  balance leastconn
frontend front
  bind 127.0.0.1:{site.port}
  http-request set-header X-Forwarded-For %[src]
  use_backend posts if METH_POST
  default_backend gets
backend gets
  http-reuse always
  option httpchk GET {CHECK_PATH}
  default-server inter 250ms fastinter 100ms downinter 250ms fall 2 rise 1
  default-server check observe layer7 error-limit 3 on-error mark-down pool-purge-delay 4s
{servers}
backend posts
  option http-server-close
  http-reuse never
  timeout server 9s
  http-request disable-l7-retry
{tracking}
"""


def ours(policy: str) -> Peer:
    """Steelyard with a policy in its storm configuration."""
    return Peer(
        f"{OURS} {label_of(policy)}",
        lambda site: run_steelyard(site, steelyard(site, policy)),
    )


OTHERS = {
    "nginx": Peer("nginx", lambda site: run_nginx(site, nginx(site)), "nginx"),
    "haproxy": Peer("haproxy", lambda site: run_haproxy(site, haproxy(site)), "haproxy"),
}
