"""TLS for clients and workers: contexts, session resumption and the transport."""
