"""Header blocks of HTTP/2 (RFC 7541) for the load generator.

No field is put into a dynamic table: a request is the same bytes every time. Of a response only the status is read.
"""

from __future__ import annotations

from collections.abc import Iterable

STATIC_METHODS = {"GET": b"\x82", "POST": b"\x83"}
STATIC_SCHEMES = {"http": b"\x86", "https": b"\x87"}
STATIC_STATUSES = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}
STATUS_NAMES = frozenset(first | index for first in (0x00, 0x10, 0x40) for index in range(8, 15))
"""First bytes of a field whose name is that of `:status`, by one of its indices, and whose value follows."""
LITERALS = {
    first + name for first in (b"\0", b"\x10", b"\x40") for name in (b"\7:status", b"\x85\xb8\x84\x8d6\xa3")
}
"""First bytes of one that has the name itself, also in Huffman's code."""


def literal(value: bytes) -> bytes:
    """A string with its length (RFC 7541 section 5.2), not compressed."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    found, rest = [127], size - 127
    while rest >= 128:
        found.append(rest % 128 + 128)
        rest //= 128
    return bytes((*found, rest)) + value


def header_block(
    method: str, scheme: str, authority: str, path: str, fields: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Header block of a request without references to the dynamic table: the same bytes for every request."""
    parts = [STATIC_METHODS.get(method) or b"\x02" + literal(method.encode()), STATIC_SCHEMES[scheme]]
    parts += [b"\x04", literal(path.encode()), b"\x01", literal(authority.encode())]
    for name, value in fields:
        parts += [b"\0", literal(name.lower().encode()), literal(value.encode("latin-1"))]
    return b"".join(parts)


def huffman(digits: str) -> bytes:
    """Digits in Huffman's code of RFC 7541 appendix B: five bits for 0 to 2, six for the others, padded with ones."""
    bits = "".join(f"{int(digit):05b}" if digit < "3" else f"{int(digit) + 22:06b}" for digit in digits)
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


STATUSES = {literal(str(status).encode()): status for status in range(100, 600)} | {
    bytes((128 + len(code),)) + code: status for status in range(100, 600) for code in [huffman(str(status))]
}
"""Status by its bytes in a header block, length included."""


def status_in(block: bytes) -> int:
    """Status of a response from its header block, whose first field it is; 0 if there is none."""
    at = 0
    while at < len(block) and block[at] >> 5 == 1:  # sizes of the dynamic table
        at += 1
        if block[at - 1] == 0x3F:
            while at < len(block) and block[at] & 0x80:
                at += 1
            at += 1
    if at >= len(block):
        return 0
    name = (
        1
        if block[at] in STATUS_NAMES
        else next((len(one) for one in LITERALS if block.startswith(one, at)), 0)
    )
    if name:
        at += name
        size = block[at] & 0x7F if at < len(block) else 0
        return STATUSES.get(block[at : at + 1 + size], 0)
    return STATIC_STATUSES.get(block[at], 0)
