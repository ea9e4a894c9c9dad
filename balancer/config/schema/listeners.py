"""The tables [listeners.NAME] of the configuration: further addresses for traffic, beside `listen`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, IPvAnyNetwork, StringConstraints, model_validator

from balancer.config.schema.listen import UNIX, ListenAddress, TrafficAddress
from balancer.config.schema.routes import DEFAULT, RedirectConfig, RouteConfig, check_cluster
from balancer.config.schema.section import Section
from balancer.config.schema.sections import TlsConfig

DEFAULT_MODE = "660"
"""Permissions of a Unix socket: its user and group may connect."""


class ListenerConfig(Section):
    """A further address: what its clients speak, and where its requests go."""

    listen: TrafficAddress = Field(
        description="host:port or unix:/path | address, as the `listen` of the top level"
    )
    tls: TlsConfig | None = Field(
        default=None, description="table | with the keys of `[tls]`; without it, clients speak plain HTTP"
    )
    proxy_protocol: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="list of networks | as `proxy_protocol` of the top level, for the clients of this listener",
    )
    cluster: str | None = Field(
        default=None,
        description="name | cluster that gets all requests of this listener, whatever the routes; `default`: the "
        "endpoints of the top level. Without it, the routes apply",
    )
    redirect: RedirectConfig | None = Field(
        default=None,
        description="table | redirect of all requests, as `routes.redirect` of a route with the prefix `/`",
    )
    mode: Annotated[str, StringConstraints(pattern=r"^[0-7]{3}$")] = Field(
        default=DEFAULT_MODE,
        description="octal number | permissions of a Unix socket: who may write to it may connect",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.cluster is not None and self.redirect is not None:
            raise ValueError("redirect: give cluster or redirect, not both")
        if self._has("mode") and not self.listen.startswith(UNIX):
            raise ValueError("mode: applies only to a Unix socket")
        own, redirect = "http" if self.tls is None else "https", self.redirect
        if redirect is not None and redirect.leads_to(own, host=None, path=None, prefix="/"):
            raise ValueError(f"redirect: all requests of this listener already ask for {redirect.wanted}")
        return self

    @property
    def route(self) -> RouteConfig | None:
        """The route of all its requests; None if those of the configuration apply."""
        if self.cluster is None and self.redirect is None:
            return None
        return RouteConfig(cluster=self.cluster, redirect=self.redirect, prefix="/")

    def __str__(self) -> str:
        """Its URL and where its requests go, as `balancer check` lists them."""
        target = "routes" if self.route is None else self.route.target
        return f"{url_of(self.listen, is_tls=self.tls is not None)}, {target}"


def url_of(address: object, *, is_tls: bool) -> str:
    """Return the URL of a listener for messages; a Unix socket has only its path."""
    text = str(address)
    return text if text.startswith(UNIX) else f"{'https' if is_tls else 'http'}://{text}"


def check_listeners(
    listen: str, listeners: Mapping[str, ListenerConfig], clusters: Mapping[str, Any], *, has_default: bool
) -> None:
    """Check the listeners as a whole. Raises ValueError for an unknown cluster or an address that is there twice."""
    known = [*clusters, *([DEFAULT] if has_default else [])]
    taken = {ListenAddress.parse_traffic(listen): "listen"}
    for name, listener in listeners.items():
        if name == DEFAULT:
            raise ValueError(f"listeners.{DEFAULT}: is the name of the address 'listen'")
        if listener.cluster is not None:
            check_cluster(f"listeners.{name}.cluster", listener.cluster, known)
        address = ListenAddress.parse_traffic(listener.listen)
        if address in taken and (address.port or address.path):
            raise ValueError(f"listeners.{name}.listen: is the address of {taken[address]}, too")
        taken[address] = f"listeners.{name}"


def changed_listeners(old: Mapping[str, ListenerConfig], new: Mapping[str, ListenerConfig]) -> Iterator[str]:
    """Yield the keys of listeners that have changed and apply at the start, and the listeners that are new or gone."""
    for name in dict.fromkeys((*old, *new)):
        if name not in old or name not in new:
            yield f"listeners.{name}"
        else:
            for key in ("listen", "mode"):
                if getattr(old[name], key) != getattr(new[name], key):
                    yield f"listeners.{name}.{key}"
