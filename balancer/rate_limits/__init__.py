"""Rate limits: token buckets of requests by client, key or in total, which sibling processes share."""
