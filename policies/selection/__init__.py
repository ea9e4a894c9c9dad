"""Parts of selection that several policies share: by score, of two choices, by deadline, by key, headroom, trials."""
