"""Start the project's programs as an operator does, and send them plain requests.

A started program is always ended, by its own process id.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.platform.ports import free_ports

PATIENCE = 30.0
"""Seconds within which a program must answer or end."""


class Program(subprocess.Popen[str]):
    """A process; its output is read line by line."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        super().__init__(
            command,
            env=dict(environment),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __exit__(self, *error: Any) -> None:
        self.terminate()
        try:
            self.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        super().__exit__(*error)

    def line(self) -> str:
        """The next line; empty at the end of output."""
        assert self.stdout is not None
        return self.stdout.readline()

    def rest(self) -> str:
        output, _ = self.communicate(timeout=PATIENCE)
        return output

    def stop(self) -> int:
        self.terminate()
        return self.wait(PATIENCE)


@dataclass(frozen=True)
class Response:
    status: int
    text: str
    fields: Mapping[str, str]


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """Send a GET on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        return Response(response.status, response.read().decode(), dict(response.getheaders()))
    finally:
        connection.close()


def commands_on_free_ports(procfile: str) -> tuple[dict[str, str], dict[str, str]]:
    """Commands of a Procfile by name, its workers on free ports, and the balancer's environment that names these."""
    commands, endpoints = {}, []
    for line in procfile.splitlines():
        process, _, command = line.partition(": ")
        words = command.split()
        if "--admin" in words:
            words[words.index("--admin") + 1] = str(next(free_ports(1)))
        if "--port" in words:
            words[words.index("--port") + 1] = str(port := next(free_ports(1)))
            name, region = words[words.index("--name") + 1], words[words.index("--region") + 1]
            endpoints.append({"id": name, "region": region, "address": f"http://127.0.0.1:{port}"})
        commands[process] = " ".join(words)
    return commands, {"BALANCER_ENDPOINTS": json.dumps(endpoints)}
