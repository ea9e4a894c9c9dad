"""Tables of routes as text: which route of a table a request matches."""

from __future__ import annotations

from random import Random
from typing import Any

from balancer.config.schema.routes import RouteConfig, check_routes
from balancer.config.schema.sections import NormaliseConfig
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import Request
from balancer.routes.route import Route
from balancer.routes.table import RouteTable
from tests.support.outgoing import outgoing_request

Configs = dict[str, dict[str, Any]]
"""Keys of routes by name; one that has no target answers."""

TRUSTED = "172.16."
"""Beginning of the addresses of trusted proxies."""


class NamedRoutes:
    """A table of routes, each with a name."""

    def __init__(self, configs: Configs, normalise: NormaliseConfig | None = None) -> None:
        made = {
            name: RouteConfig.model_validate(keys if "redirect" in keys else keys | {"answer": {}})
            for name, keys in configs.items()
        }
        check_routes([*made.values()], {}, has_default=True)
        pairs = [(config, Route(config, None)) for config in made.values()]
        self._names = {route: name for name, (_, route) in zip(made, pairs, strict=True)}
        self.table = RouteTable()
        self.table.replace(
            pairs, has_default=True, normalise=normalise, trusts=lambda address: address.startswith(TRUSTED)
        )

    def found(self, line: str) -> str | None:
        """Return the name of the route that a request matches."""
        route = self.table.find(*request_of(line))
        return None if route is None else self._names[route]


def request_of(line: str) -> tuple[Request, Client]:
    """Parse "METHOD target [https] [from ADDRESS] [field=value …] [at HOST]"."""
    method, target, *rest = line.split()
    words = iter(rest)
    host, address, proto, fields = "any.org", "192.0.2.1", b"http", []
    for word in words:
        if word == "at":
            host = next(words)
        elif word == "from":
            address = next(words)
        elif word == "https":
            proto = b"https"
        else:
            fields.append(word.replace("=", ": ", 1))
    head = "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "", ""])
    client = Client(address.encode(), b"127.0.0.1:80", proto, is_trusted=address.startswith(TRUSTED))
    return outgoing_request(head.encode(), client, b"id"), client


def check_in_any_order(
    configs: Configs, cases: list[tuple[str, str]], normalise: NormaliseConfig | None = None
) -> None:
    """Assert that each request matches its route, whatever the order of the routes, and that every route is matched."""
    assert {expected for _, expected in cases} == set(configs)
    names = list(configs)
    for order in (names, names[::-1], *(Random(seed).sample(names, len(names)) for seed in range(20))):
        routes = NamedRoutes({name: configs[name] for name in order}, normalise)
        assert {line: routes.found(line) for line, _ in cases} == dict(cases)
