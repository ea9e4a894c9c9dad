"""Parts of selection that several policies share: by score, of two choices, by key, from a pool of probes."""
