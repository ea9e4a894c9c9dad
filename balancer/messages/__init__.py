"""HTTP/1.1 as bytes: what stands in a head, where a body ends, how either is passed on. No connection is known here."""
