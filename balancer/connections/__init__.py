"""Everything on the side of the workers: a connection, the pool that it belongs to, and how it is made."""
