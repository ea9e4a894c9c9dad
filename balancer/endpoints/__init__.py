"""Who the endpoints are and how they are: configured, ordered, discovered, and checked."""
