"""Scenario and labels of `experiments load`, from its command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from balancer.tools.probe.target import ProbeTarget
from experiments.errors import BadInputError
from experiments.scenario.files import validated
from experiments.scenario.labels import LONGEST_LABEL, shortened
from experiments.scenario.service import ServiceScenario
from experiments.service.target import parse_target

NAMED = re.compile(r"(?P<label>[^=/:?#]+)=(?P<url>(?:https?|http\+unix)://.*)", re.DOTALL)
MOST_URLS = 20


@dataclass(frozen=True, slots=True)
class Contestant:
    """One entry: its label, the target of its requests, its policy, and the label that it repeats, if any."""

    label: str
    url: str
    target: ProbeTarget
    policy: dict[str, Any]
    repeat_of: str | None = None


def contestants_of(urls: Sequence[str]) -> list[Contestant]:
    """Entries for URLs, each perhaps as NAME=URL. A URL that is given twice is an A/A control.

    Raises `BadInputError`.
    """
    if len(urls) > MOST_URLS:
        raise BadInputError(f"URL: at most {MOST_URLS} are compared, got {len(urls)}")
    found: list[Contestant] = []
    for text in urls:
        match = NAMED.fullmatch(text)
        url = match["url"] if match else text
        target = parse_target(url)
        label = checked_label(match["label"].strip()) if match else label_of_url(url)
        same = [one for one in found if one.url == url and not match]
        if any(one.label == label for one in found) and not same:
            raise BadInputError(f"URL: {label!r} names two; give each a name: NAME=URL")
        if same and any(one.repeat_of for one in found):
            raise BadInputError(f"URL: {label!r} is one pair too many; one is enough to know the noise")
        name = shortened(label, " again") if same else label
        found.append(Contestant(name, url, target, {"name": name}, same[0].label if same else None))
    return found


def checked_label(label: str) -> str:
    """Check a label from the command line. Raises `BadInputError`."""
    if not label or "," in label or len(label) > LONGEST_LABEL:
        raise BadInputError(
            f"URL: NAME must have 1 to {LONGEST_LABEL} characters and no comma, got {label[:60]!r}"
        )
    return label


def label_of_url(url: str) -> str:
    """Label for a URL: without its scheme and query, the end of a long one; a comma is escaped."""
    short = url.partition("://")[2].partition("?")[0].rstrip("/").replace(",", "%2C")
    return short if len(short) <= LONGEST_LABEL else f"…{short[1 - LONGEST_LABEL :]}"


def service_scenario(
    contestants: Sequence[Contestant], load: dict[str, Any], service: dict[str, Any], **keys: Any
) -> ServiceScenario:
    """The scenario. Raises `BadInputError` that names the option."""
    labels = [one.label for one in contestants]
    urls = list(dict.fromkeys(one.url for one in contestants))
    rate = f"{load['rate']:g} requests per second" + (" and other rates" if load.get("stages") else "")
    question = (
        f"How soon does {urls[0]} answer at {rate}?"
        if len(contestants) == 1
        else f"Which answers soonest at {rate}: {' or '.join(labels)}?"
    )
    content = {
        "name": "load",
        "question": question,
        "source": f"{', '.join(urls)}",
        "baseline": labels[0],
        "load": {"mode": "open", **load},
        "service": service,
        "warmup": 0,
        "entries": [
            {"label": one.label, "policy": one.policy, "repeat_of": one.repeat_of, "url": one.url}
            for one in contestants
        ],
        **{key: value for key, value in keys.items() if value is not None},
    }
    return validated(ServiceScenario, content, r"^(load|service)[.:] ?|(?<=^threshold)s(\.\d+)?")
