"""State shared with others: processes of one server by memory, replicas by a store (Redis protocol)."""
