"""State of one endpoint: load, latency, health, limits, and data that policies keep per endpoint."""
