"""Endpoints of a cluster: registry, discovery, active checks, and the log of their states."""
