"""nginx and HAProxy in front of the table's worker: plain configurations, one thread, keep-alive on both sides.

Strictness stays at the defaults; limits that rows name are set to the balancer's where there is a setting.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.platform.ports import free_ports

NGINX = """\
{user}daemon off; pid {folder}/pid; error_log {folder}/log emerg; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_max_body_size 65536;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream worker {{ server 127.0.0.1:{worker} max_fails=0; keepalive 8; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://worker; proxy_http_version 1.1; proxy_request_buffering off; proxy_next_upstream off;
      proxy_set_header Connection ""; proxy_set_header Host $http_host;
    }}
  }}
}}
"""

HAPROXY = """\
global
  nbthread 1
defaults
  mode http
  retries 0
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-keep-alive
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  server worker 127.0.0.1:{worker}
"""

PATIENCE = 10.0
"""Seconds for a program to begin to listen."""


@dataclass(frozen=True)
class Peer:
    """Another proxy; `version` is the one with which the known differences were recorded."""

    name: str
    configuration: str
    arguments: tuple[str, ...]
    version: str

    @property
    def path(self) -> str | None:
        return shutil.which(self.name)

    def installed_version(self) -> str:
        """Major and minor version: 1.22 of 1.22.1."""
        ran = subprocess.run([self.name, "-v"], capture_output=True, text=True, check=True)
        found = re.search(r"(\d+\.\d+)\.\d", ran.stdout + ran.stderr)
        return found[1] if found else "unknown"


PEERS = (
    Peer("nginx", NGINX, ("-p", "{folder}", "-c"), "1.22"),
    Peer("haproxy", HAPROXY, ("-db", "-f"), "2.6"),
)


@contextmanager
def running(peer: Peer, folder: Path, worker: int) -> Iterator[int]:
    """Start `peer` with `worker` as its backend port; yield its port."""
    [port] = free_ports(1)
    user = (
        "user root; " if os.geteuid() == 0 else ""
    )  # as root nginx would drop the rights to write its files
    file = folder / "configuration"
    file.write_text(peer.configuration.format(user=user, folder=folder, port=port, worker=worker))
    arguments = (argument.format(folder=folder) for argument in peer.arguments)
    process = subprocess.Popen([peer.name, *arguments, str(file)], stderr=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process listens."""
    until = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, f"the peer ended with {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until, "the peer does not listen"
            time.sleep(0.01)
        else:
            return
