"""The sockets that a unit listens on: opened once, before it forks, and passed on to the program that replaces it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from balancer.admin.sockets import AdminSockets, open_control
from balancer.config.listen import ListenAddress
from balancer.config.load import Settings
from balancer.downstream.acceptor import bind
from balancer.process.socket_handover import Inherited


@dataclass(frozen=True, slots=True)
class Listening:
    """The socket for traffic, bound for `listen` of the configuration, and those for control requests."""

    listen: str
    traffic: socket.socket
    control: AdminSockets
    control_listen: str | None

    @property
    def address(self) -> ListenAddress:
        """Where clients connect, with the port that was given."""
        return address_of(self.traffic)

    def labelled(self) -> list[tuple[str, socket.socket]]:
        """All of them with their labels, to be passed on."""
        return [(self.listen, self.traffic), *self.control.labelled(self.control_listen)]


def listening(settings: Settings, complain: Callable[[str], None]) -> Listening:
    """The sockets that `settings` ask for: passed on, or new. Raises `ListenFailed`.

    What is wrong with the default control socket is said to `complain`.
    """
    inherited, address = Inherited(), ListenAddress.parse(settings.listen)
    traffic = inherited.traffic(settings.listen) or bind(address.host, address.port)
    try:
        port = address_of(traffic).port
        control = open_control(settings.control, port, complain, inherited.control)
    except BaseException:
        traffic.close()
        raise
    finally:
        inherited.close()
    return Listening(settings.listen, traffic, control, settings.control.listen)


def address_of(sock: socket.socket) -> ListenAddress:
    """Where it listens."""
    host, port = sock.getsockname()[:2]
    return ListenAddress(host, port)
