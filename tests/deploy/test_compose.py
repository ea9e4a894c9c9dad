"""compose.yaml: a balancer before three regions of two workers; it agrees with the image, the example and the programs.

The keys that a service may have are listed here, and an unknown one is an error, since no maintained package has the
compose specification. `docker compose config` checks the file too where it is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from balancer.configuration import load
from balancer.healthcheck import PATIENCE
from tests.deploy.dockerfile import one, stages
from tests.support.root import ROOT
from workers.__main__ import cli as workers_cli
from workers.settings import Settings as WorkerSettings

Service = dict[str, Any]

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Service] = COMPOSE["services"]
BALANCER = SERVICES["balancer"]
WORKERS = {name: service for name, service in SERVICES.items() if name != "balancer"}
KEYS = {
    "image",
    "build",
    "restart",
    "read_only",
    "cap_drop",
    "security_opt",
    "healthcheck",
    "stop_grace_period",
    *("entrypoint", "command", "ports", "environment", "volumes", "tmpfs", "ulimits", "depends_on"),
}
CHECK_KEYS = {"test", "interval", "timeout", "start_period", "retries"}
SETTINGS = load(ROOT / "deploy" / "compose" / "balancer.toml", {"listen": "127.0.0.1:0"})


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def options_of(service: Service) -> dict[str, str]:
    """The options of `workers serve`."""
    words = [*service["entrypoint"], *service["command"]]
    assert words[:2] == ["workers", "serve"]
    return dict(zip(words[2::2], words[3::2], strict=True))


def test_keys_are_known() -> None:
    """And durations are in seconds."""
    assert {key for key in COMPOSE if not key.startswith("x-")} == {"name", "services"}
    for service in SERVICES.values():
        check = service["healthcheck"]
        assert set(service) <= KEYS
        assert set(check) == CHECK_KEYS
        assert service["restart"] == "unless-stopped"
        for duration in (
            service["stop_grace_period"],
            check["interval"],
            check["timeout"],
            check["start_period"],
        ):
            assert re.fullmatch(r"\d+s", duration)


def test_workers_agree_with_the_balancers_endpoints() -> None:
    """Each endpoint is a service; its port and region are the worker's."""
    regions = [endpoint.region for endpoint in SETTINGS.endpoints]
    assert {region: regions.count(region) for region in regions} == {"emea": 2, "us": 2, "asia": 2}
    assert {e.id for e in SETTINGS.endpoints} == set(WORKERS)
    for endpoint in SETTINGS.endpoints:
        options = options_of(WORKERS[endpoint.id])
        assert endpoint.address == f"http://{endpoint.id}:{options['--port']}"
        assert (endpoint.id, endpoint.region) == (options["--name"], options["--region"])
        assert options["--host"] == "0.0.0.0"


@pytest.mark.parametrize("name", WORKERS)
def test_workers_accept_their_options(name: str) -> None:
    """The program parses them, without listening."""
    service = WORKERS[name]
    words = [*service["entrypoint"], *service["command"]]
    assert CliRunner().invoke(workers_cli, [*words[1:], "--help"]).exit_code == 0
    known = {option for command in workers_cli.commands.values() for p in command.params for option in p.opts}
    assert set(options_of(service)) <= known


def test_one_service_builds_the_image_of_all() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["balancer"]
    assert {service["image"] for service in SERVICES.values()} == {BALANCER["image"]}


def test_balancer_starts_as_the_image_defines() -> None:
    """Its configuration is where the image's command reads it, and the image's port is published."""
    final = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1]
    source, target, mode = BALANCER["volumes"][0].split(":")
    assert ({"entrypoint", "command"} & set(BALANCER), mode) == (set(), "ro")
    assert one(final, "CMD").words()[-1] == f"{target}/balancer.toml"
    assert (ROOT / source / "balancer.toml").is_file()
    assert BALANCER["ports"][0].split(":")[1] == one(final, "EXPOSE").text
    assert f"PORT={one(final, 'EXPOSE').text}" in one(final, "ENV").words()


def test_stop_grace_period_is_long_enough() -> None:
    """SIGKILL comes after each program's own grace period plus 3 s to write the log and exit."""
    assert seconds(BALANCER["stop_grace_period"]) >= SETTINGS.timeouts.shutdown + 3
    for service in WORKERS.values():
        assert seconds(service["stop_grace_period"]) >= WorkerSettings().grace + 3


def test_health_checks_use_the_images_own_command() -> None:
    """Without curl; the balancer starts when its workers are healthy, and a check's timeout exceeds the command's
    own."""
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][:4] == ["CMD", "python", "-m", "balancer.healthcheck"]
        assert seconds(service["healthcheck"]["timeout"]) > PATIENCE
        port = re.findall(r":(\d+)/healthz", service["healthcheck"]["test"][-1])
        assert port == ([] if name == "balancer" else [options_of(service)["--port"]])
    assert BALANCER["healthcheck"]["test"][4:] == []
    assert BALANCER["depends_on"] == {name: {"condition": "service_healthy"} for name in WORKERS}


def test_services_have_no_needless_rights() -> None:
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(volume.endswith(":ro") for volume in service.get("volumes", []))
    assert BALANCER["tmpfs"] == ["/tmp"], "the admin socket needs a place"


@pytest.mark.peer
def test_docker_compose_accepts_the_file() -> None:
    docker = shutil.which("docker")
    asked = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not here")
    ran = subprocess.run(
        [docker, "compose", "-f", ROOT / "compose.yaml", "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
