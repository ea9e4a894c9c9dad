"""Request/response exchanges: admission, routing, attempts, retries, hedging, tunnels."""
