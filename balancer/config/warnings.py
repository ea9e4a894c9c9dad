"""Warnings of `balancer check`: what is valid, and probably not meant."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, SecretStr

from balancer.config.keys import dotted
from balancer.config.loading import LoadedSettings, Settings
from balancer.config.positions import Place
from balancer.config.schema.discovery import FileDiscovery
from balancer.config.schema.endpoint import ADDRESS, EndpointConfig, sent_host, tls_name
from balancer.config.schema.health import HealthChecksConfig
from balancer.config.schema.log import SECRETS
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.config.schema.policy_spec import can_read_prompts
from balancer.config.schema.routes import RouteConfig, by_place
from balancer.syntax.urls import host_in
from policies import registry
from policies.errors import some_of

RESERVED: Final = "/-/"
"""Paths of the admin interface, which no route gets."""

BODILESS: Final = frozenset(("GET", "HEAD", "OPTIONS", "CONNECT", "TRACE"))
"""Methods whose requests have no body, as a rule."""

READ_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


def warnings_about(
    reading: LoadedSettings, file: Path | None, read: Callable[[FileDiscovery], Sequence[EndpointConfig]]
) -> Iterator[str]:
    """Yield the warnings that do not concern routes; `file` is the configuration, `read` returns the endpoints of a
    file of discovery."""
    settings = reading.settings
    yield from misnamed_workers(settings, read)
    yield from unused_rate_limits(settings)
    yield from unused_check_keys(settings)
    yield from failing_checks(settings, read)
    yield from unread_prompts(settings)
    yield from unused_load_probes(settings)
    yield from refused_at_start(settings)
    yield from logged_secrets(settings.log.fields)
    yield from exposed_secrets(reading, file)


def route_warnings(settings: Settings) -> list[str]:
    """Return a line for each route or mirror that no request can match, and for each cluster that neither a route nor a
    listener names."""
    routes, lines = settings.routes, []
    for at, route in enumerate(routes):
        path = route.path or route.prefix or "/"
        if path.startswith(RESERVED):
            lines.append(
                f"routes.{at}: matches no request: paths under {RESERVED} are those of the admin interface"
            )
        refused = [
            method
            for method in route.methods
            if method in ("CONNECT", "TRACE") and method not in settings.http.allow
        ]
        if route.methods and len(refused) == len(route.methods):
            lines.append(f"routes.{at}: matches no request: {', '.join(refused)} is refused; see http.allow")
        if route.model is not None and route.methods and BODILESS.issuperset(route.methods):
            lines.append(
                f"routes.{at}.model: is in the body, and requests with {', '.join(route.methods)} have none"
            )
    for places in by_place(routes):
        for at in places:
            both = [each for each in places if _differs_by_scheme(routes[each], routes[at])]
            if len(both) == 2:
                lines.append(
                    f"routes.{at}: matches no request: routes.{both[0]} and routes.{both[1]} take both schemes"
                )
    for at, route in enumerate(routes):
        if route.mirror is not None and route.methods and not {*route.methods} & {*route.mirror.methods}:
            lines.append(f"routes.{at}.mirror: copies nothing: none of its methods is one of the route's")
    used = (
        {listener.cluster for listener in settings.listeners.values()}
        | {name for route in routes for name in route.clusters}
        | {beside.cluster for route in routes for beside in (route.mirror, route.auth) if beside is not None}
    )
    lines += [f"clusters.{name}: no route leads to it" for name in settings.clusters if name not in used]
    return lines


def _differs_by_scheme(more: RouteConfig, less: RouteConfig) -> bool:
    """Return whether one of two routes for the same host and path has a scheme, and nothing else differs."""
    without = more.model_copy(update={"scheme": None})
    return more.scheme is not None and without.conditions == less.conditions


def unused_rate_limits(settings: Settings) -> Iterator[str]:
    """Yield a line for each limit that applies to no request."""
    named = {route.rate_limit for route in settings.routes}
    for limit in settings.rate_limits:
        if not limit.everywhere and limit.name not in named:
            yield f"rate limit {limit.name}: applies to no request; name it in a route, or set everywhere = true"


def refused_at_start(settings: Settings) -> Iterator[str]:
    """Yield a line for each key with which `serve` would end on this machine: sockets that systemd passes, or another
    machine, may make it right."""
    taken = {settings.listen: "listen"} | {
        listener.listen: f"listeners.{name}.listen" for name, listener in settings.listeners.items()
    }
    if settings.admin.listen in taken:
        yield f"admin.listen: is the address of {taken[settings.admin.listen]}, too"
    folder = None if settings.log.path is None else Path(settings.log.path).parent
    if settings.log.access != "off" and folder is not None and not folder.is_dir():
        yield f"log.path: there is no directory {folder} on this machine"


def unused_check_keys(settings: Settings) -> Iterator[str]:
    """Yield a line for each given key that connects do not use, where no checks send requests, or for a scheme
    without a port."""
    of_connects = ("first_connect", "interval", "fast_interval", "timeout", "rise", "fall")
    every = [cluster.health_checks for cluster in (settings, *settings.clusters.values())]
    if not any(one.path is not None or one.grpc is not None for one in every):
        for key, field in HealthChecksConfig.model_fields.items():
            default = field.get_default(call_default_factory=True)
            if key not in of_connects and any(getattr(one, key) != default for one in every):
                yield f"health_checks.{key}: is not used: checks only connect without path or grpc"
    elif any(one.scheme for one in every) and not any(one.port for one in every):
        yield "health_checks.scheme: is not used: without port, checks use that of the endpoint"


def failing_checks(
    settings: Settings, read: Callable[[FileDiscovery], Sequence[EndpointConfig]]
) -> Iterator[str]:
    """Yield a line for each cluster with endpoints that checks by gRPC cannot ask."""
    for name, cluster in {"": settings, **settings.clusters}.items():
        checks, file = cluster.health_checks, cluster.discovery.file
        if checks.grpc is not None and checks.port is None:
            every = [*cluster.endpoints, *(() if file is None else read(file))]
            failing = [one.id for one in every if one.transport != "http2"] + [
                one.name for one in cluster.discovery.dns
            ]
            if failing:
                place = f"clusters.{name}.health_checks" if name else "health_checks"
                yield (
                    f'{place}.grpc: every check of {some_of(failing)} fails: it needs transport = "http2", or a port '
                    "of its own"
                )


def unread_prompts(settings: Settings) -> Iterator[str]:
    """Yield a line for each policy that reads prompts where bodies are not kept, and for what cannot be read."""
    for name, cluster in {"": settings, **settings.clusters}.items():
        factory = registry.find(cluster.policy.name, cluster.policy.library)
        if cluster.kind == "inference" and not can_read_prompts():
            place = f"clusters.{name}.kind" if name else "kind"
            yield f"{place}: without msgspec and xxhash ends of streams are not checked, and no tokens are counted"
        if getattr(factory, "reads_prompts", False) and not cluster.buffering.request:
            place = f"clusters.{name}.policy" if name else "policy"
            yield (
                f"{place}: {cluster.policy.label} reads prompts, of which it gets few: bodies of requests are not kept "
                'whole; set buffering.request, or kind = "inference"'
            )


def unused_load_probes(settings: Settings) -> Iterator[str]:
    """Yield a line for each cluster whose policy sends no load probes to engines that would report by metrics."""
    for name, cluster in {"": settings, **settings.clusters}.items():
        factory = registry.find(cluster.policy.name, cluster.policy.library)
        # What a function makes is not known.
        probes = not isinstance(factory, type) or hasattr(factory, "probes")
        if cluster.load_probes.format == "metrics" and not probes:
            place = f"clusters.{name}.load_probes" if name else "load_probes"
            yield f"{place}: is not used: {cluster.policy.label} asks for no load; llm-d does"


def logged_secrets(fields: Iterable[str]) -> list[str]:
    """Return a line for each chosen field that holds credentials."""
    return [
        f"log.fields: {name} writes credentials to the access log"
        for name in fields
        if name.partition(":")[2] in SECRETS
    ]


def misnamed_workers(
    settings: Settings, read: Callable[[FileDiscovery], Sequence[EndpointConfig]]
) -> Iterator[str]:
    """Yield a line for each https endpoint, and each source of them, whose requests have another Host than the name for
    which its certificate is verified."""
    for name, cluster in {"": settings, **settings.clusters}.items():
        file = cluster.discovery.file
        of_file = () if file is None else read(file)
        yield from _misnamed(cluster, of_file, f"clusters.{name}." if name else "")


def _misnamed(cluster: ClusterSettings, of_file: Sequence[EndpointConfig], field: str) -> Iterator[str]:
    listed = {f"endpoints.{at}": one for at, one in enumerate(cluster.endpoints)}
    listed |= {f"discovery.file.endpoints.{at}": one for at, one in enumerate(of_file)}
    places = [
        (place, one.address, one.host, (one.tls or cluster.upstream_tls).server_name)
        for place, one in listed.items()
    ] + [
        (f"discovery.dns.{at}", f"{one.scheme}://{one.name}", one.host, cluster.upstream_tls.server_name)
        for at, one in enumerate(cluster.discovery.dns)
    ]
    for place, origin, wanted, server_name in places:
        name = tls_name(origin)
        names = [each for each in (name, server_name) if each and origin.startswith("https:")]
        host = host_in(sent_host(wanted, origin).encode()).decode()
        if wanted is not None and names and host not in names:
            whose = f"is {wanted}" if host else "is the client's"
            yield (
                f"{field}{place}.host: the Host {whose}, but the server is {names[-1]}, and may answer 404 or 421 to "
                f'other names; host = "{ADDRESS if name else server_name}" sends its own'
            )


def exposed_secrets(reading: LoadedSettings, file: Path | None) -> Iterator[str]:
    """Yield a line for each secret whose file is readable by its group or by all; `file` is the configuration.

    A platform's own token of a service account is not the operator's to protect and is left out.
    """
    seen = set[tuple[str, Path]]()
    for place, secret in _secrets(reading.settings, ()):
        holder = secret if isinstance(secret, Path) else _configuration(reading, place, file)
        is_inherited = place[:1] == ("clusters",) and (dotted(place[2:]), holder) in seen
        if holder is None or is_inherited:
            continue
        seen.add((dotted(place), holder))
        try:
            mode = holder.stat().st_mode
        except OSError:
            continue  # reported where it is read
        if mode & READ_BY_OTHERS:
            yield f"{dotted(place)}: {holder} can be read by other users (mode {stat.S_IMODE(mode):04o}); chmod 600"


def _configuration(reading: LoadedSettings, place: Place, file: Path | None) -> Path | None:
    """Return the configuration file if the value at `place` is from it, and not from the environment."""
    return file if (reading.source(place) or "").startswith(f"{file}:") else None


def _secrets(section: BaseModel, place: Place) -> Iterator[tuple[Place, SecretStr | Path]]:
    """Yield the places of all secrets that are given, each as a value or as the file that holds it."""
    fields = dict(section)
    if fields.get("token_file") is not None and "token" in fields:
        yield (*place, "token_file"), fields.pop("token_file")
        del fields["token"]
    if "certificate" in fields:
        name = "certificate" if fields.get("key") is None else "key"
        if isinstance(fields[name], Path):
            yield (*place, name), fields[name]
    for name, value in fields.items():
        if isinstance(value, SecretStr) and (name != "url" or "@" in value.get_secret_value()):
            yield (*place, name), value
        for at, each in _parts(value):
            yield from _secrets(each, (*place, name, *at))


def _parts(value: object) -> Iterator[tuple[Place, BaseModel]]:
    if isinstance(value, BaseModel):
        yield (), value
    elif isinstance(value, dict):
        yield from (((name,), each) for name, each in value.items() if isinstance(each, BaseModel))
    elif isinstance(value, tuple):
        yield from (((at,), each) for at, each in enumerate(value) if isinstance(each, BaseModel))
