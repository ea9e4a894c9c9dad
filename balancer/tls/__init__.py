"""TLS on both sides: contexts from the configuration, and the transport that speaks it."""
