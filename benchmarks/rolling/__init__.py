"""`python -m benchmarks rolling`: workers restarted, the unit reloaded and replaced, under load."""
