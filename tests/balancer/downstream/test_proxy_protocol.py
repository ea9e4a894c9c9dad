"""PROXY protocol headers as bytes: valid forms of the specification, and invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.downstream.proxy_protocol import LONGEST_LINE, SIGNATURE, BadProxyHeader, ProxyHeader, parse

V4, V6 = "192.168.0.1", "2001:db8::1"
LONGEST_V6 = b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"


def block(command: int, family: int, rest: bytes, length: int | None = None) -> bytes:
    """A header of version 2; `length` overrides its true length."""
    size = len(rest) if length is None else length
    return SIGNATURE + bytes((command, family)) + size.to_bytes(2, "big") + rest


INET = bytes((192, 168, 0, 1, 10, 0, 0, 1)) + (56324).to_bytes(2, "big") + (443).to_bytes(2, "big")
INET6 = bytes.fromhex("20010db8" + "00" * 11 + "01") + bytes(15) + b"\x01" + INET[8:]
TLV = b"\x03\x00\x04\x01\x02\x03\x04"

GOOD: dict[str, tuple[bytes, tuple[str, int] | None, tuple[str, int] | None]] = {
    "v1 tcp4": (b"PROXY TCP4 192.168.0.1 10.0.0.1 56324 443\r\n", (V4, 56324), ("10.0.0.1", 443)),
    "v1 longest tcp4": (
        b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
        ("255.255.255.255", 65535),
        ("255.255.255.255", 65535),
    ),
    "v1 tcp6": (b"PROXY TCP6 2001:db8::1 ::1 56324 443\r\n", (V6, 56324), ("::1", 443)),
    "v1 tcp6 in capitals": (b"PROXY TCP6 2001:DB8::1 ::1 0 443\r\n", (V6, 0), ("::1", 443)),
    "v1 longest tcp6": (
        b"PROXY TCP6 %b %b 65535 65535\r\n" % (LONGEST_V6, LONGEST_V6),
        (LONGEST_V6.decode(), 65535),
        (LONGEST_V6.decode(), 65535),
    ),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None, None),
    "v1 longest unknown": (b"PROXY UNKNOWN %b %b 65535 65535\r\n" % (LONGEST_V6, LONGEST_V6), None, None),
    "v1 unknown with text": (b"PROXY UNKNOWN to be ignored\r\n", None, None),
    "v2 inet": (block(0x21, 0x11, INET), (V4, 56324), ("10.0.0.1", 443)),
    "v2 inet with tlvs": (block(0x21, 0x11, INET + TLV), (V4, 56324), ("10.0.0.1", 443)),
    "v2 inet6": (block(0x21, 0x21, INET6), (V6, 56324), ("::1", 443)),
    "v2 inet6 with tlvs": (block(0x21, 0x21, INET6 + TLV * 40), (V6, 56324), ("::1", 443)),
    "v2 unix": (block(0x21, 0x31, b"/a".ljust(108, b"\0") + b"/b".ljust(108, b"\0")), None, None),
    "v2 unspec": (block(0x21, 0x00, b""), None, None),
    "v2 unspec with bytes": (block(0x21, 0x00, b"whatever"), None, None),
    "v2 local": (block(0x20, 0x00, b""), None, None),
    "v2 local with addresses": (block(0x20, 0x11, INET), None, None),
    "v2 local of an odd family": (block(0x20, 0x7F, b"x"), None, None),
}

BAD: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\n",
    "tls": b"\x16\x03\x01",
    "small letters": b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
    "a space before": b" PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
    "no space": b"PROXYTCP4 1.2.3.4 1.2.3.4 1 2\r\n",
    "two spaces": b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
    "a space at the end": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n",
    "too few words": b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
    "no words": b"PROXY\r\n",
    "udp": b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
    "bare lf": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
    "v6 address as tcp4": b"PROXY TCP4 ::1 ::1 1 2\r\n",
    "v4 address as tcp6": b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
    "leading zeros": b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
    "a number too large": b"PROXY TCP4 256.2.3.4 1.2.3.4 1 2\r\n",
    "a scope": b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
    "a name": b"PROXY TCP4 localhost 1.2.3.4 1 2\r\n",
    "not ascii": "PROXY TCP4 ١.2.3.4 1.2.3.4 1 2\r\n".encode(),
    "port too large": b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
    "port with zeros": b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
    "port with a sign": b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
    "port left out": b"PROXY TCP4 1.2.3.4 1.2.3.4  2\r\n",
    "too long a line": b"PROXY UNKNOWN " + b"x" * LONGEST_LINE,
    "one byte too long": b"PROXY UNKNOWN ".ljust(LONGEST_LINE - 1, b"x") + b"\r\n",
    "wrong signature": SIGNATURE[:-1] + b"\r",
    "version 1 in version 2": block(0x11, 0x11, INET),
    "version 3": block(0x31, 0x11, INET),
    "an unknown command": block(0x22, 0x11, INET),
    "an unknown family": block(0x21, 0x41, INET),
    "an unknown protocol": block(0x21, 0x13, INET),
    "datagrams": block(0x21, 0x12, INET),
    "shorter than inet": block(0x21, 0x11, INET[:-1]),
    "shorter than inet6": block(0x21, 0x21, INET6[:-1]),
    "shorter than unix": block(0x21, 0x31, bytes(215)),
}


@pytest.mark.parametrize("case", GOOD)
def test_valid_header(case: str) -> None:
    """Bytes after the header are left alone, and a header is incomplete until its last byte."""
    data, source, destination = GOOD[case]
    for rest in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", data):
        assert parse(data + rest) == ProxyHeader(len(data), source, destination)
    for end in range(1, len(data)):
        assert parse(data[:end]) is None, end


@pytest.mark.parametrize("case", BAD)
def test_invalid_header_is_refused(case: str) -> None:
    """Once refused, more bytes do not change that."""
    data = BAD[case]
    is_refused = False
    for end in range(1, len(data) + 1):
        try:
            assert parse(data[:end]) is None
        except BadProxyHeader:
            is_refused = True
        else:
            assert not is_refused, end
    assert is_refused


def test_longest_line_matches_the_specification() -> None:
    assert len(GOOD["v1 longest unknown"][0]) == LONGEST_LINE


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"!\x11"]),
)
def test_arbitrary_bytes_raise_nothing_else(data: bytes, begin: bytes) -> None:
    """A header, an error or an incomplete header."""
    try:
        header = parse(begin + data) if begin + data else None
    except BadProxyHeader:
        return
    assert header is None or header.size <= len(begin + data)
