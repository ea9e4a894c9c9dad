"""Routing: the router with its endpoints and the active policy, session affinity, and knowledge of other units."""
