"""Mirroring: copies of a share of a route's requests go to another cluster; only their latency and status are kept."""
