"""Sections of the configuration: keys, types, bounds, defaults and what they mean."""
