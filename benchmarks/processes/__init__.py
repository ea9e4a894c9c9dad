"""`python -m benchmarks processes`: gain of a second balancer process."""
