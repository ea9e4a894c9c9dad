"""TLS towards clients and workers: contexts, session resumption and the transport."""
