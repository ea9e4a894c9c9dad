"""Client connections: accepting, the PROXY protocol, requests in order, timeouts."""
