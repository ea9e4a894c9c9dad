"""Health check of the balancer on this machine, for environments without curl.

    python -m balancer.healthcheck                                  0: it takes requests, 1: it does not
    python -m balancer.healthcheck --alive                          0: it answers at all
    python -m balancer.healthcheck http://127.0.0.1:9000/healthz    of another program on this machine

Each check starts an interpreter, so this module imports as little as possible, and nothing of the project.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from urllib.parse import SplitResult, urlsplit

PATIENCE = 4.0
"""Timeout of each step in seconds, below the 5 s recommended for the caller's timeout."""

STATUS_LINE_LIMIT = 256
USAGE = "must be: python -m balancer.healthcheck [--alive] [http://host:port/path]"


def own_url(environment: Mapping[str, str]) -> str:
    """Return the health URL of the balancer on this machine, on $PORT or 8080."""
    return f"http://127.0.0.1:{environment.get('PORT') or 8080}/-/health"


def status_at(url: str) -> int:
    """Return the status of a GET. Raises OSError if the connection fails, ValueError if the response is not HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{USAGE}, got '{url}'")
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    with closing(connection(parts)) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        with sock.makefile("rb") as answer:
            line = answer.readline(STATUS_LINE_LIMIT)
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"no HTTP from {url}")
    return int(rest[:3])


def connection(parts: SplitResult) -> socket.socket:
    """Open a connection. The certificate is not verified: it is for the names that clients use."""
    is_tls = parts.scheme == "https"
    sock = socket.create_connection((parts.hostname, parts.port or (443 if is_tls else 80)), PATIENCE)
    if not is_tls:
        return sock
    import ssl  # costs three times all other imports, so only for https

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(sock)
    except OSError:
        sock.close()
        raise


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the check and return the exit code; a problem is one line on stderr."""
    is_any_answer_good = "--alive" in words
    urls = [word for word in words if word != "--alive"]
    if len(urls) > 1 or any(url.startswith("-") for url in urls):
        return fail(USAGE, 2)
    url = urls[0] if urls else own_url(environment)
    try:
        status = status_at(url)
    except OSError as error:
        return fail(f"{url}: {error.strerror or error}", 1)
    except ValueError as error:
        return fail(str(error), 1)
    return 0 if is_any_answer_good or 200 <= status < 300 else fail(f"{url}: status {status}", 1)


def fail(problem: str, code: int) -> int:
    """Print the problem to stderr and return `code`."""
    print(f"probe: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
