"""PROXY protocol, versions 1 and 2: the header before a connection's data that carries the client's addresses.

Pure: bytes in; a header, None while it is incomplete, or `BadProxyHeader` out. Strict, as the specification demands
(haproxy's proxy-protocol.txt §§ 2.1, 2.2): a header that is required and malformed is never guessed at. What follows
the addresses (TLVs) is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""Signature of version 2; no other protocol begins with it."""

LONGEST_LINE = 107
"""Maximum bytes of a version 1 line, its CRLF included (§ 2.1)."""

_FIXED = 16  # bytes of version 2 before the addresses
_FAMILIES: dict[bytes, type[IPv4Address] | type[IPv6Address]] = {b"TCP4": IPv4Address, b"TCP6": IPv6Address}
_ADDRESSES = {0: 0, 1: 12, 2: 36, 3: 216}  # by family: unspecified, IPv4, IPv6, UNIX; their bytes

Address = tuple[str, int]


class BadProxyHeader(Exception):
    """The bytes are not a PROXY header, and no more bytes will make them one."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A parsed PROXY header. `size` is its own, in bytes.

    Without `source` the connection's own addresses hold: the proxy speaks for itself (LOCAL), or for a client without
    an address.
    """

    size: int
    source: Address | None = None
    destination: Address | None = None


def parse(data: bytes) -> ProxyHeader | None:
    """Parse the header that `data` begins with; None if it is incomplete. Raises `BadProxyHeader`."""
    if data.startswith(b"PROXY"[: len(data)]):
        return _line(data)
    if data.startswith(SIGNATURE[: len(data)]):
        return _block(data)
    raise BadProxyHeader("neither version 1 nor version 2")


# --- version 1: text


def _line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\n", 0, LONGEST_LINE)
    if end < 0:
        if len(data) >= LONGEST_LINE:
            raise BadProxyHeader(f"no end of line within {LONGEST_LINE} bytes")
        return None
    if data[end - 1 : end] != b"\r":
        raise BadProxyHeader("a bare LF")
    words = data[: end - 1].split(b" ")
    if words[:2] == [b"PROXY", b"UNKNOWN"]:  # the rest of the line is to be ignored
        return ProxyHeader(end + 1)
    if len(words) != 6 or words[0] != b"PROXY" or words[1] not in _FAMILIES:
        raise BadProxyHeader("not PROXY, TCP4 or TCP6, two addresses and two ports")
    address = _FAMILIES[words[1]]
    source, destination = (_written(address, word) for word in words[2:4])
    return ProxyHeader(end + 1, (source, _port(words[4])), (destination, _port(words[5])))


def _written(address: type[IPv4Address] | type[IPv6Address], word: bytes) -> str:
    try:
        if b"%" in word or b"/" in word:
            raise ValueError
        return str(address(word.decode("ascii")))
    except ValueError:  # UnicodeDecodeError is one
        raise BadProxyHeader("an address that is none of its family") from None


def _port(word: bytes) -> int:
    is_number = word.isdigit() and len(word) <= 5 and (word == b"0" or word[:1] != b"0")
    if not is_number or int(word) > 65_535:
        raise BadProxyHeader("a port that is none")
    return int(word)


# --- version 2: binary


def _block(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED:
        _check_fixed_part(data)
        return None
    family, length = _check_fixed_part(data), int.from_bytes(data[14:16], "big")
    is_local = data[12] & 15 == 0
    if not is_local and length < _ADDRESSES[family]:
        raise BadProxyHeader("shorter than the addresses of its family")
    if len(data) < _FIXED + length:
        return None
    if is_local or family not in (1, 2):
        return ProxyHeader(_FIXED + length)
    return _addresses(data, _FIXED + length, 4 if family == 1 else 16)


def _check_fixed_part(data: bytes) -> int:
    """Validate the fixed part as far as it has come. Returns the address family, 0 while it has not come."""
    if len(data) > 12 and data[12] not in (0x20, 0x21):
        raise BadProxyHeader("a version that is not 2, or a command that is neither LOCAL nor PROXY")
    if len(data) <= 13:
        return 0
    family, protocol = data[13] >> 4, data[13] & 15
    if data[12] == 0x21 and (family not in _ADDRESSES or protocol > 2):
        raise BadProxyHeader("an unknown family or protocol")
    if data[12] == 0x21 and family and protocol == 2:
        raise BadProxyHeader("datagrams over a stream")
    return family


def _addresses(data: bytes, size: int, width: int) -> ProxyHeader:
    make: type[IPv4Address] | type[IPv6Address] = IPv4Address if width == 4 else IPv6Address
    ends = [data[at : at + width] for at in (_FIXED, _FIXED + width)]
    source, destination = (str(make(end)) for end in ends)
    at = _FIXED + 2 * width
    ports = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 4], "big")
    return ProxyHeader(size, (source, ports[0]), (destination, ports[1]))
