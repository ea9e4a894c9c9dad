"""What becomes of one request: let in, routed, sent, perhaps sent again or to two, answered, settled."""
