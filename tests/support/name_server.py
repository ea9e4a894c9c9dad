"""Name server on loopback: authoritative for `records`, over UDP (RFC 1035 § 4).

It builds messages without a DNS library, so that a mistake of the library cannot hide in the test.
"""

from __future__ import annotations

import asyncio
import socket
import struct

A, CNAME, SOA, AAAA, SRV = 1, 5, 6, 28, 33
NOERROR, SERVFAIL, NXDOMAIN = 0, 2, 3


def name_bytes(name: str) -> bytes:
    """Labels without compression."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.strip(".").split(".")) + b"\0"


class NameServer(asyncio.DatagramProtocol):
    """Answers from `records`: (TTL, data) by name and kind.

    A name with records of another kind has no data of this kind; a name without any does not exist. `code` is the
    code of all answers, which come after `delay` seconds; `is_silent` suppresses all of them; `failing_kinds` and
    `failing_names` are answered SERVFAIL, `silent_kinds` not at all.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.code = NOERROR
        self.is_silent = False
        self.failing_kinds: set[int] = set()
        self.failing_names: set[str] = set()
        self.silent_kinds: set[int] = set()
        self.delay = 0.0
        self.asked: list[tuple[str, int]] = []
        self.port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def stop(self) -> None:
        self._transport.close()

    # --- records

    def address(self, name: str, *hosts: str, ttl: int = 0) -> None:
        """Set A and AAAA records of `name`, each host by its family."""
        for kind, family in ((A, socket.AF_INET), (AAAA, socket.AF_INET6)):
            chosen = [host for host in hosts if (":" in host) == (kind == AAAA)]
            self.records[name, kind] = [(ttl, socket.inet_pton(family, host)) for host in chosen]

    def alias(self, name: str, target: str, ttl: int = 0) -> None:
        self.records[name, CNAME] = [(ttl, name_bytes(target))]

    def service(self, name: str, *targets: tuple[int, int, int, str]) -> None:
        """Set SRV records: priority, weight, port, target."""
        self.records[name, SRV] = [
            (0, struct.pack("!HHH", priority, weight, port) + name_bytes(target))
            for priority, weight, port, target in targets
        ]

    # --- asyncio.DatagramProtocol

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        name, kind, end = self._question(data)
        self.asked.append((name, kind))
        if self.is_silent or kind in self.silent_kinds:
            return
        answers = self._answers(name, kind)
        exists = any(known == name for known, _ in self.records)
        code = self.code or (NOERROR if exists else NXDOMAIN)
        if kind in self.failing_kinds or name in self.failing_names:
            code = SERVFAIL
        if code:
            answers = []
        authority = [] if answers else [self._soa()]  # RFC 2308 § 2: the TTL of the negative answer
        head = data[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(answers), len(authority), 0)
        answer = head + data[12:end] + b"".join([*answers, *authority])
        asyncio.get_running_loop().call_later(self.delay, self._transport.sendto, answer, address)

    def _question(self, data: bytes) -> tuple[str, int, int]:
        labels, at = [], 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += 1 + size
        (kind,) = struct.unpack_from("!H", data, at + 1)
        return ".".join(labels).lower(), kind, at + 5

    def _answers(self, name: str, kind: int) -> list[bytes]:
        alias = self.records.get((name, CNAME))
        if alias is not None and kind != CNAME:
            ttl, target = alias[0]
            text = b".".join(self._labels(target)).decode()
            return [self._record(name, CNAME, ttl, target), *self._answers(text, kind)]
        return [self._record(name, kind, ttl, data) for ttl, data in self.records.get((name, kind), [])]

    def _soa(self) -> bytes:
        times = struct.pack("!IIIII", 1, 0, 0, 0, 0)
        return self._record("test", SOA, 0, name_bytes("ns.test") + name_bytes("admin.test") + times)

    @staticmethod
    def _labels(wire: bytes) -> list[bytes]:
        labels = []
        while wire[0]:
            labels.append(wire[1 : 1 + wire[0]])
            wire = wire[1 + wire[0] :]
        return labels

    @staticmethod
    def _record(name: str, kind: int, ttl: int, data: bytes) -> bytes:
        return name_bytes(name) + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data
