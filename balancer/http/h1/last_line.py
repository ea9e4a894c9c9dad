"""Texts of the last line of the access log about a client, most of which its next line repeats."""

from __future__ import annotations


class LastLine:
    """Texts, each beside the values that it was formatted from.

    `fields` are those of the head, up to the request id, that `host` and `client` were formatted from; b"" if the next
    line cannot have the same.
    """

    def __init__(self) -> None:
        self.fields = b""
        self.is_http10 = self.has_own_id = False
        self.host = ""
        self.client = ""
        self.asked = ""  # from the end of the time to the request id
        self.method = self.target = b""
        self.end = ""  # of a request that did not fail; "": `asked` holds no more
        self.answer = ""  # from the status on
        self.status = -1
        self.size = self.bytes_in = 0
        self.sample = ""
