"""Endpoint set: configured, added by command, discovered, and checked."""
