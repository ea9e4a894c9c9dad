"""HTTP/1.1 messages as bytes: heads, framing and fields. Pure: no connections."""
