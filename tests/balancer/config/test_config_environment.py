"""Environment variables: what they set, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.configuration import load
from tests.support.config_files import ENDPOINT, write

SECRET = "hunter2-is-a-bad-secret"


def settings_with(tmp_path: Path, text: str, **variables: str) -> Settings:
    path = write(tmp_path, text)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return load(path, {})


def problems_with(tmp_path: Path, **variables: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        settings_with(tmp_path, ENDPOINT, **variables)
    return caught.value.problems


@pytest.mark.parametrize(
    ("variables", "key", "value"),
    [
        ({"BALANCER_RETRIES": "3"}, "retries", 3),
        ({"BALANCER_LIMITS__QUEUE": "5"}, "limits.queue", 5),
        ({"BALANCER_LIMITS": '{"queue": 5}'}, "limits.queue", 5),
        ({"BALANCER_LIMITS": '{"queue": 5}', "BALANCER_LIMITS__QUEUE": "6"}, "limits.queue", 6),
        ({"BALANCER_HEDGING__ENABLED": "true"}, "hedging.enabled", True),
        ({"BALANCER_RETRY__STATUSES": "[500]"}, "retry.statuses", (500,)),
        ({"BALANCER_HOME_REGION": "7"}, "home_region", "7"),
        ({"BALANCER_POLICY": "random"}, "policy.name", "random"),
        ({"BALANCER_POLICY": '"random"'}, "policy.name", "random"),
        ({"BALANCER_POLICY__NAME": "c3", "BALANCER_POLICY__CHOICES": "5"}, "policy.options", {"choices": 5}),
        ({"BALANCER_POLICY": "c3", "BALANCER_POLICY__CHOICES": "5"}, "policy.options", {"choices": 5}),
        (
            {
                "BALANCER_DISCOVERY__KUBERNETES__SERVICE": "workers",
                "BALANCER_DISCOVERY__KUBERNETES__ZONES": '{"eu-1a": "emea"}',
            },
            "discovery.kubernetes.zones",
            {"eu-1a": "emea"},
        ),
    ],
)
def test_values(tmp_path: Path, variables: dict[str, str], key: str, value: Any) -> None:
    """Lists and tables are JSON; a key of a table has a variable of its own."""
    found: Any = settings_with(tmp_path, ENDPOINT, **variables)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value


def test_policy_replaces_that_of_the_file(tmp_path: Path) -> None:
    """Options of the file's policy do not apply to another one; without a name they are added."""
    text = ENDPOINT + '[policy]\nname = "least-in-flight"\nchoices = 3\n'
    policy = settings_with(tmp_path, text, BALANCER_POLICY='{"name": "region-aware"}').policy
    assert (policy.name, policy.options) == ("region-aware", {})
    policy = settings_with(tmp_path, text, BALANCER_POLICY__TIE="rate").policy
    assert (policy.name, policy.options) == ("least-in-flight", {"choices": 3, "tie": "rate"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BALANCER_POLCY", SECRET, "is not a known variable; did you mean BALANCER_POLICY?"),
        ("BALANCER_ADMIN_TOKEN", SECRET, "is not a known variable; did you mean BALANCER_ADMIN__TOKEN?"),
        ("BALANCER_ADMIN__TOKN", SECRET, "is not a known variable; did you mean BALANCER_ADMIN__TOKEN?"),
        (
            "BALANCER_POOLS__A__TIMEOUTS__FIRST_BYTE",
            "3",
            "is not a known variable; did you mean BALANCER_CLUSTERS__A__TIMEOUTS__FIRST_BYTE?",
        ),
        (
            "BALANCER_CLUSTERS__A__TIMOUTS__FIRST_BIT",
            "3",
            "is not a known variable; did you mean BALANCER_CLUSTERS__A__TIMEOUTS__FIRST_BYTE?",
        ),
        ("BALANCER_LIMITS__QUEUE__X", "1", "is not a known variable; did you mean BALANCER_LIMITS__QUEUE?"),
        ("BALANCER_NOTHING_OF_THE_KIND", SECRET, "is not a known variable"),
        ("BALANCER_", SECRET, "is not a known variable"),
        ("BALANCER_ADMIN_PORT", "9180", "is not a known variable"),
        ("balancer_retries", "3", "variables are in capitals: BALANCER_RETRIES"),
        ("Balancer_Admin__Token", SECRET, "variables are in capitals: BALANCER_ADMIN__TOKEN"),
        ("BALANCER_ENDPOINTS__0__ID", "a", "endpoints is a list: set BALANCER_ENDPOINTS as JSON"),
        ("BALANCER_RETRIES", "", "is empty; give it a value, or unset it"),
        ("BALANCER_ADMIN__TOKEN", "", "is empty; give it a value, or unset it"),
        ("BALANCER_RETRIES", "many", "retries: input should be a valid integer"),
        ("BALANCER_LIMITS", "{", "limits: must be a table, and this text is not JSON, got '{'"),
        ("BALANCER_LIMITS__QUEUE", "-1", "limits.queue: input should be greater than or equal to 0"),
        ("BALANCER_LIMITS__QUEUE", "9" * 5000, "limits.queue: "),
        ("BALANCER_HEDGING__SHARE", "nan", "hedging.share: "),
        ("BALANCER_ENDPOINTS", "[" * 900 + "]" * 900, "endpoints: must be a list"),
        ("BALANCER_ADMIN__TOKEN", SECRET[:15], "admin.token: must have 16 characters or more"),
        ("BALANCER_ADMIN", f'{{"token": "{SECRET}"', "admin: must be a table, and this text is not JSON"),
        ("BALANCER_POLICY", '{"name": "p2x"}', "policy: unknown policy 'p2x'"),
        ("PORT", "http", "must be a port"),
        ("PORT", "9" * 5000, "must be a port"),
        ("WEB_CONCURRENCY", "9" * 5000, "must be a whole number"),
    ],
)
def test_refused_variables(tmp_path: Path, name: str, value: str, message: str) -> None:
    """One line that begins with the variable, without a value that may be a secret."""
    (problem,) = problems_with(tmp_path, **{name: value})
    assert problem.startswith(f"{name}: {message}")
    assert SECRET[:15] not in problem
    assert "\n" not in problem


def test_several_variables(tmp_path: Path) -> None:
    """Beside the mistakes of the file."""
    with pytest.raises(ConfigError) as caught:
        settings_with(tmp_path, f"retrys = 1\n{ENDPOINT}", BALANCER_POLCY="x", BALANCER_SEED="-1", PORT="x")
    assert [problem.split(": ")[0].rpartition("/")[2] for problem in caught.value.problems] == [
        "BALANCER_POLCY",
        "PORT",
        "BALANCER_SEED",
        "balancer.toml:1",
    ]


def test_variables_of_kubernetes_services(tmp_path: Path) -> None:
    """Those that a Service named `balancer` or `balancer-admin` puts into every pod of its namespace."""
    settings = settings_with(
        tmp_path,
        ENDPOINT,
        BALANCER_SERVICE_HOST="10.0.0.1",
        BALANCER_SERVICE_PORT="80",
        BALANCER_SERVICE_PORT_HTTP="80",
        BALANCER_PORT="tcp://10.0.0.1:80",
        BALANCER_PORT_80_TCP="tcp://10.0.0.1:80",
        BALANCER_PORT_80_TCP_PROTO="tcp",
        BALANCER_PORT_80_TCP_PORT="80",
        BALANCER_PORT_80_TCP_ADDR="10.0.0.1",
        BALANCER_ADMIN_SERVICE_HOST="10.0.0.2",
        BALANCER_ADMIN_PORT="tcp://10.0.0.2:9180",
    )
    assert settings.admin.listen is None
    assert settings.listen == "127.0.0.1:8080"
