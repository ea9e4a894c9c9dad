"""Scenarios of `experiments load` and `experiments live`: what runs already, instead of workers that are started.

They are written to `campaign.json` like any other scenario; scenario files cannot contain them.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from experiments.platform.printable import PrintableLine
from experiments.scenario.scenario import Entry, Region, Scenario, require_labels
from experiments.scenario.table import Duration, Model, Seconds

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
Method = Literal["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]

MOST_CONNECTIONS = 10_000
MOST_SHOWN = 5
"""Number of requests that a report describes one by one."""


class RequestKind(Model):
    """A request. Values of header fields and the body are not kept, because they may be secret."""

    method: Method = "GET"
    path: PrintableLine | None = Field(default=None, description="None: that of the URL")
    fields: tuple[PrintableLine, ...] = Field(default=(), description="names of further header fields")
    body: int = Field(default=0, ge=0, description="length of the body in bytes")

    @property
    def request_in_words(self) -> str:
        """Description such as `POST /orders with Authorization, a body of 12 bytes`."""
        path = f" {self.path}" if self.path else ""
        fields = f" with {', '.join(self.fields)}" if self.fields else ""
        body = f", a body of {self.body} bytes" if self.body else ""
        return f"{self.method}{path}{fields}{body}"


class WeightedRequest(RequestKind):
    """One of several requests; `share` (0..1) of all."""

    share: float = Field(gt=0, le=1)


class Service(RequestKind):
    """How requests are sent, and the only request unless there are several `requests`."""

    requests: tuple[WeightedRequest, ...] = ()
    http2: bool = False
    connections: int = Field(ge=1, le=MOST_CONNECTIONS, description="most open at a time, to each URL")
    warmup: Seconds = Field(default=1.0, description="seconds of the same load before each run")
    verifies: bool = Field(default=True, description="whether certificates are verified")

    @property
    def in_words(self) -> str:
        """Description such as `GET with Authorization, over at most 1000 connections`."""
        several = [f"{one.share:.1%} {one.request_in_words}" for one in self.requests[:MOST_SHOWN]]
        shown = several or [self.request_in_words]
        if len(self.requests) > MOST_SHOWN:
            shown.append(f"{len(self.requests) - MOST_SHOWN} more")
        version = ", over HTTP/2" if self.http2 else ""
        trust = "" if self.verifies else ", certificates not verified"
        return f"{'; '.join(shown)}{version}, over at most {self.connections} connections{trust}"


class ServiceEntry(Entry):
    """An entry with the URL that its requests go to. Where URLs are compared, the policy's name is the label."""

    url: PrintableLine


class RunningScenario(Scenario):
    """Scenario without regions: what gets the requests runs already."""

    home_region: str = ""
    regions: tuple[Region, ...] = ()

    @model_validator(mode="after")
    def names_agree(self) -> Self:
        require_labels(self)
        if self.regions or self.events:
            raise ValueError("regions, events: a service that runs already has none")
        return self


class ServiceScenario(RunningScenario):
    """URLs, or the policies of a running balancer, under the load of a generator."""

    service: Service
    entries: tuple[ServiceEntry, ...] = Field(min_length=1, max_length=1000)

    def entry(self, label: str) -> ServiceEntry:
        return next(entry for entry in self.entries if entry.label == label)


class LiveScenario(RunningScenario):
    """Policies of a running balancer in turns, under its own traffic. A failure counts as slow as `timeout`."""

    url: PrintableLine
    period: Duration = Field(description="seconds of each policy in a block")
    washout: Seconds = Field(description="seconds at the beginning of each period that do not count")
    blocks: int = Field(ge=1, le=10_000)

    def load_in_words(self, entry: Entry) -> str:
        return "the balancer's own traffic"
