"""Whether the unit of this machine is well: for the health checks of places that have no curl.

    python -m balancer.healthcheck                                  0: it takes requests, 1: it does not
    python -m balancer.healthcheck --alive                          0: it answers at all
    python -m balancer.healthcheck http://127.0.0.1:9000/healthz    of another program on this machine

Rule of this file: an interpreter starts for every look, so it imports the least that will do, and nothing of ours.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from urllib.parse import SplitResult, urlsplit

PATIENCE = 4.0
"""Seconds for each step, below the 5 s that who asks should wait for the answer."""

STATUS_LINE_LIMIT = 256
USAGE = "must be: python -m balancer.healthcheck [--alive] [http://host:port/path]"


def own_url(environment: Mapping[str, str]) -> str:
    """Where the unit of this machine says how it is, on $PORT or 8080."""
    return f"http://127.0.0.1:{environment.get('PORT') or 8080}/-/health"


def status_at(url: str) -> int:
    """The status of a GET. Raises OSError where nobody answers, ValueError where what comes is not HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{USAGE}, got '{url}'")
    with closing(connection(parts)) as sock:
        sock.sendall(
            f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        with sock.makefile("rb") as answer:
            line = answer.readline(STATUS_LINE_LIMIT)
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"no HTTP from {url}")
    return int(rest[:3])


def connection(parts: SplitResult) -> socket.socket:
    """To whoever listens there; its certificate is for names that clients use, and so not looked at."""
    is_tls = parts.scheme == "https"
    sock = socket.create_connection((parts.hostname, parts.port or (443 if is_tls else 80)), PATIENCE)
    if not is_tls:
        return sock
    import ssl  # three times the rest of what is imported, for those who need it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(sock)
    except OSError:
        sock.close()
        raise


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code for this command line; what is not well is one line on standard error."""
    is_any_answer_good = "--alive" in words
    urls = [word for word in words if word != "--alive"]
    if len(urls) > 1 or any(url.startswith("-") for url in urls):
        return told(USAGE, 2)
    url = urls[0] if urls else own_url(environment)
    try:
        status = status_at(url)
    except OSError as error:
        return told(f"{url}: {error.strerror or error}", 1)
    except ValueError as error:
        return told(str(error), 1)
    return 0 if is_any_answer_good or 200 <= status < 300 else told(f"{url}: status {status}", 1)


def told(problem: str, code: int) -> int:
    """`code`, after the problem is said."""
    print(f"probe: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
