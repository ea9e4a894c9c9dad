"""Load generator: arrivals, demand, connections, and the ledger of what was sent."""
