"""Listening sockets of the balancer: opened once before the supervisor forks, and passed on at a hot restart."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from balancer.build import build
from balancer.config.loading import Settings
from balancer.config.schema.listen import ListenAddress
from balancer.control.admin.sockets import AdminSockets, open_admin_sockets
from balancer.downstream.acceptor import bind
from balancer.process.socket_handover import Inherited


@dataclass(frozen=True, slots=True)
class Listening:
    """The traffic socket, bound for `listen` of the configuration, and the admin sockets."""

    listen: str
    traffic: socket.socket
    admin: AdminSockets
    admin_listen: str | None

    @property
    def address(self) -> ListenAddress:
        """The address for clients, with the actual port."""
        return address_of(self.traffic)

    def labelled(self) -> list[tuple[str, socket.socket]]:
        """Return all sockets with their labels, for a hot restart."""
        return [(self.listen, self.traffic), *self.admin.labelled(self.admin_listen)]


def listening(settings: Settings, complain: Callable[[str], None]) -> Listening:
    """Return the sockets that `settings` ask for, inherited or new. Raises `ListenFailed`.

    A problem with the default admin socket is only reported, to `complain`.
    """
    inherited, address = Inherited(), ListenAddress.parse(settings.listen)
    traffic = inherited.traffic(settings.listen) or bind(address.host, address.port)
    try:
        port = address_of(traffic).port
        admin = open_admin_sockets(settings.admin, port, complain, inherited.admin)
    except BaseException:
        traffic.close()
        raise
    finally:
        inherited.close()
    return Listening(settings.listen, traffic, admin, settings.admin.listen)


def address_of(sock: socket.socket) -> ListenAddress:
    """Return the address that the socket is bound to."""
    host, port = sock.getsockname()[:2]
    return ListenAddress(host, port)


def ready_line(settings: Settings, address: ListenAddress, endpoints: int) -> str:
    """Return the readiness message, with the number of `endpoints` known by then."""
    processes = settings.processes
    return (
        f"balancer ready on {'http' if settings.tls is None else 'https'}://{address} "
        f"(policy {settings.policy.label}, {endpoints} endpoint{'s' if endpoints != 1 else ''}"
        f"{f', {processes} processes' if processes != 1 else ''}, {build()} build)"
    )
