"""Connections to workers in HTTP/1.1, their pool, and how long they may be idle."""
