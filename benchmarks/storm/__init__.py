"""`python -m benchmarks storm`: workers killed, stopped and degraded under steady load."""
