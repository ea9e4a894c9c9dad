"""Objects of the Kubernetes API as they are sent: EndpointSlices of discovery.k8s.io/v1, lists and events. Pure.

Only the fields in use are read. `null` stands for an empty list, because Go writes a nil slice so.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import AliasPath, BaseModel, BeforeValidator, Field, model_validator

FAMILIES = {"IPv4": 4, "IPv6": 6}
"""IP version by address type; the other type, FQDN, has host names."""

Text = Annotated[str, Field(max_length=2048)]

NoneAsEmpty = BeforeValidator(lambda value: () if value is None else value)


class SliceEndpoint(BaseModel):
    """One pod. Its addresses are interchangeable; the API asks for use of the first. Conditions, None: unknown."""

    addresses: tuple[Text, ...] = Field(min_length=1)
    ready: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "ready"))
    serving: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "serving"))
    terminating: bool | None = Field(default=None, validation_alias=AliasPath("conditions", "terminating"))
    zone: Text | None = None
    uid: Text | None = Field(default=None, validation_alias=AliasPath("targetRef", "uid"))

    @property
    def pod(self) -> str:
        """Identity of the pod; in a slice that was not made from pods, the address."""
        return self.uid or self.addresses[0]

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests. Unknown is ready; with `publishNotReadyAddresses` a pod stays ready while it
        terminates."""
        return self.ready is not False and not self.terminating

    @property
    def is_last_resort(self) -> bool:
        """Whether it takes requests while no other pod is ready, as with kube-proxy: it serves until it ends."""
        return bool(self.serving and self.terminating)


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


Version = Annotated[Text, Field(validation_alias=AliasPath("metadata", "resourceVersion"), min_length=1)]
"""A resource version, which is opaque."""


class EndpointSlice(BaseModel):
    """Endpoints of one Service with the same address type and the same ports."""

    name: Text = Field(validation_alias=AliasPath("metadata", "name"), min_length=1)
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


class SliceList(BaseModel):
    """One page of a list; `next_page` is the token of the next one."""

    kind: Literal["EndpointSliceList"]
    api: Literal["discovery.k8s.io/v1"] = Field(alias="apiVersion")
    version: Version
    next_page: Text | None = Field(default=None, validation_alias=AliasPath("metadata", "continue"))
    items: Annotated[tuple[EndpointSlice, ...], NoneAsEmpty]


class WatchEvent(BaseModel):
    """One line of a watch."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]


class Versioned(BaseModel):
    """Object of an event: a slice, or in a bookmark only its resource version."""

    kind: Literal["EndpointSlice"]
    api: Literal["discovery.k8s.io/v1"] = Field(alias="apiVersion")
    version: Version


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
