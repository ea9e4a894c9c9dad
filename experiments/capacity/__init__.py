"""`experiments capacity` and `experiments load`: how much a system takes, and what it costs on the way there."""
