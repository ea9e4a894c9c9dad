"""Sidecar mode: one local listener that forwards an application's outbound calls."""
