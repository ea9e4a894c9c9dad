"""compose.yaml: a unit before three regions of two workers, and everything in it agrees with the rest of the house.

Rule of this file: no package that one would trust carries the compose specification, so what our file uses of it is
written down here, closed: a key that is not known here is a mistake or has to be added. `docker compose config` is
asked too where there is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from balancer.configuration import load
from balancer.healthcheck import PATIENCE
from tests.deploy.dockerfile import one, stages
from workers.__main__ import cli as workers_cli
from workers.settings import Settings as WorkerSettings

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "compose.yaml").read_text(encoding="utf-8")
Duration = Annotated[str, StringConstraints(pattern=r"^(\d+)s$")]
Words = Annotated[list[str], Field(min_length=1)]


class Part(BaseModel):
    """Nothing unknown."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Healthcheck(Part):
    test: Words
    interval: Duration
    timeout: Duration
    start_period: Duration
    retries: int


class Condition(Part):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]


class Service(Part):
    image: str
    build: str
    restart: Literal["no", "always", "on-failure", "unless-stopped"]
    read_only: bool
    cap_drop: list[str]
    security_opt: list[str]
    healthcheck: Healthcheck
    stop_grace_period: Duration
    entrypoint: Words | None = None
    command: Words | None = None
    ports: list[Annotated[str, StringConstraints(pattern=r"^\d+:\d+$")]] = []
    volumes: list[str] = []
    tmpfs: list[str] = []
    ulimits: dict[str, int] = {}
    depends_on: dict[str, Condition] = {}


class Compose(Part):
    name: str
    services: dict[str, Service]


def read(text: str) -> Compose:
    """The file without its fragments."""
    document: dict[str, Any] = yaml.safe_load(text)
    return Compose.model_validate({k: v for k, v in document.items() if not k.startswith("x-")})


COMPOSE = read(TEXT)
UNIT = COMPOSE.services["balancer"]
WORKERS = {name: service for name, service in COMPOSE.services.items() if name != "balancer"}
SETTINGS = load(ROOT / "deploy" / "compose" / "balancer.toml", {"listen": "127.0.0.1:0"})


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def options_of(service: Service) -> dict[str, str]:
    """What `workers serve` is told."""
    words = [*(service.entrypoint or []), *(service.command or [])]
    assert words[:2] == ["workers", "serve"]
    return dict(zip(words[2::2], words[3::2], strict=True))


def test_a_key_that_there_is_not_is_found() -> None:
    with pytest.raises(ValidationError, match="stop_grace"):
        read(TEXT.replace("stop_grace_period: 30s", "stop_grace: 30s"))


def test_three_regions_of_two_workers_under_the_names_that_the_unit_knows() -> None:
    """Each endpoint is a service, its port is the one that the worker listens on, and its region is the worker's."""
    regions = [endpoint.region for endpoint in SETTINGS.endpoints]
    assert {region: regions.count(region) for region in regions} == {"emea": 2, "us": 2, "asia": 2}
    assert {e.id for e in SETTINGS.endpoints} == set(WORKERS)
    for endpoint in SETTINGS.endpoints:
        told = options_of(WORKERS[endpoint.id])
        assert endpoint.address == f"http://{endpoint.id}:{told['--port']}"
        assert (endpoint.id, endpoint.region) == (told["--name"], told["--region"])
        assert told["--host"] == "0.0.0.0"


@pytest.mark.parametrize("name", WORKERS)
def test_workers_understand_their_options(name: str) -> None:
    """They are read as the program reads them, up to the point where it would listen."""
    service = WORKERS[name]
    words = [*(service.entrypoint or []), *(service.command or [])]
    assert CliRunner().invoke(workers_cli, [*words[1:], "--help"]).exit_code == 0
    known = {option for command in workers_cli.commands.values() for p in command.params for option in p.opts}
    assert set(options_of(service)) <= known


def test_the_unit_starts_as_the_image_says() -> None:
    """Its configuration is where the image's command looks for it, and its port is the one that is published."""
    final = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))[-1]
    source, target, mode = UNIT.volumes[0].split(":")
    assert (UNIT.entrypoint, UNIT.command, mode) == (None, None, "ro")
    assert one(final, "CMD").words()[-1] == f"{target}/balancer.toml"
    assert (ROOT / source / "balancer.toml").is_file()
    assert UNIT.ports[0].split(":")[1] == one(final, "EXPOSE").text
    assert f"PORT={one(final, 'EXPOSE').text}" in one(final, "ENV").words()


def test_who_is_stopped_has_time_to_finish() -> None:
    """SIGKILL comes after the grace that each program gives itself, with 3 s for the log and the way out."""
    assert seconds(UNIT.stop_grace_period) >= SETTINGS.timeouts.shutdown + 3
    for service in WORKERS.values():
        assert seconds(service.stop_grace_period) >= WorkerSettings().grace + 3


def test_health_is_asked_of_everybody_by_the_image_itself() -> None:
    """By the probe, without curl; the unit is ready when its workers are, and who asks waits longer than the probe."""
    for name, service in COMPOSE.services.items():
        assert service.healthcheck.test[:4] == ["CMD", "python", "-m", "balancer.healthcheck"]
        assert seconds(service.healthcheck.timeout) > PATIENCE
        port = re.findall(r":(\d+)/healthz", service.healthcheck.test[-1])
        assert port == ([] if name == "balancer" else [options_of(service)["--port"]])
    assert UNIT.healthcheck.test[4:] == []
    assert {n: c.condition for n, c in UNIT.depends_on.items()} == dict.fromkeys(WORKERS, "service_healthy")


def test_nobody_has_rights_that_it_does_not_need() -> None:
    for service in COMPOSE.services.values():
        assert service.read_only
        assert service.cap_drop == ["ALL"]
        assert service.security_opt == ["no-new-privileges:true"]
        assert all(volume.endswith(":ro") for volume in service.volumes)
    assert COMPOSE.services["balancer"].tmpfs == ["/tmp"], "the admin socket needs a place"


@pytest.mark.peer
def test_docker_compose_agrees() -> None:
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
