"""`experiments capacity` and `experiments load`: highest sustainable rate, and latency by offered rate."""
