"""Connections to workers in HTTP/2, their streams, and their pool."""
