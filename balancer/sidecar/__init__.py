"""Outbound mode: an application's calls to others, sent to this machine, and from here over kept connections."""
