"""Upstream transports that another HTTP library provides: libcurl and aiohttp."""
