"""Routing: endpoint state, the set of endpoints, the router, and the registry of policies."""
