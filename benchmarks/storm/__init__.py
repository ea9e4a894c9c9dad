"""`python -m benchmarks storm`: workers killed, stopped, cut short and worse, under steady load."""
