"""Upstream connections: pools, idle connections, dialing, name resolution and transports."""
