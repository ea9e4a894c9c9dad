"""Endpoint registry: endpoints from the configuration, commands and discovery, and their active checks."""
