"""Objects of the Kubernetes API as they are sent: EndpointSlices of discovery.k8s.io/v1, lists and events. Pure.

Only the fields in use are read. `null` stands for an empty list, because Go writes a nil slice so.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

FAMILIES = {"IPv4": 4, "IPv6": 6}
"""IP version by address type; the other type, FQDN, has host names."""

Text = Annotated[str, Field(max_length=2048)]

NoneAsEmpty = BeforeValidator(lambda value: () if value is None else value)


class Conditions(BaseModel):
    """Conditions of a pod, None: unknown."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetReference(BaseModel):
    """Object behind an address, usually a pod."""

    uid: Text | None = None


class SliceEndpoint(BaseModel):
    """One pod. Its addresses are interchangeable; the API asks for use of the first."""

    addresses: tuple[Text, ...] = Field(min_length=1)
    conditions: Conditions = Conditions()
    zone: Text | None = None
    target: TargetReference | None = Field(default=None, alias="targetRef")

    @property
    def pod(self) -> str:
        """Identity of the pod; in a slice that was not made from pods, the address."""
        return (self.target and self.target.uid) or self.addresses[0]

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests. Unknown is ready; with `publishNotReadyAddresses` a pod stays ready while it
        terminates."""
        return self.conditions.ready is not False and not self.conditions.terminating

    @property
    def is_last_resort(self) -> bool:
        """Whether it takes requests while no other pod is ready, as with kube-proxy: it serves until it ends."""
        return bool(self.conditions.serving and self.conditions.terminating)


class SlicePort(BaseModel):
    """Port of all endpoints of a slice. `port` None: every port."""

    name: Text | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    protocol: Text | None = None

    @property
    def is_tcp(self) -> bool:
        """Whether the protocol is TCP, the default."""
        return self.protocol in (None, "TCP")

    def __str__(self) -> str:
        number = f"{self.port}" if self.is_tcp else f"{self.port}, {self.protocol}"
        return f"{self.name} ({number})" if self.name else number


class Name(BaseModel):
    """Metadata with the name of an object."""

    name: Text = Field(min_length=1)


class EndpointSlice(BaseModel):
    """Endpoints of one Service with the same address type and the same ports."""

    metadata: Name
    family: Literal["IPv4", "IPv6", "FQDN"] = Field(alias="addressType")
    endpoints: Annotated[tuple[SliceEndpoint, ...], NoneAsEmpty]
    ports: Annotated[tuple[SlicePort, ...], NoneAsEmpty] = ()

    @model_validator(mode="after")
    def _has_addresses_of_its_family(self) -> Self:
        for at, endpoint in enumerate(self.endpoints if self.family in FAMILIES else ()):
            host = endpoint.addresses[0]
            if not _is_address(host, FAMILIES[self.family]):
                raise ValueError(
                    f"endpoints.{at}.addresses.0: must be an {self.family} address, got '{host[:60]}'"
                )
        return self

    @property
    def name(self) -> str:
        """Name, unique in its namespace."""
        return self.metadata.name


class Version(BaseModel):
    """Metadata with a resource version, which is opaque, and in a list the token of the next page."""

    version: Text = Field(alias="resourceVersion", min_length=1)
    next_page: Text | None = Field(default=None, alias="continue")


class SliceList(BaseModel):
    """One page of a list."""

    kind: Literal["EndpointSliceList"]
    api: Literal["discovery.k8s.io/v1"] = Field(alias="apiVersion")
    metadata: Version
    items: Annotated[tuple[EndpointSlice, ...], NoneAsEmpty]


class WatchEvent(BaseModel):
    """One line of a watch."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]


class Versioned(BaseModel):
    """Object of an event: a slice, or in a bookmark only its resource version."""

    kind: Literal["EndpointSlice"]
    api: Literal["discovery.k8s.io/v1"] = Field(alias="apiVersion")
    metadata: Version


class Status(BaseModel):
    """Object that reports an error."""

    kind: Literal["Status"]
    message: str = ""
    code: int = 0


def _is_address(text: str, version: int) -> bool:
    try:
        return ip_address(text).version == version and "%" not in text
    except ValueError:
        return False
