"""`python -m benchmarks rolling`: workers restarted, balancer reloaded and replaced, under load."""
