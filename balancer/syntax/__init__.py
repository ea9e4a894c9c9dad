"""Syntax of small texts: URLs, field names, networks, and what may be printed."""
