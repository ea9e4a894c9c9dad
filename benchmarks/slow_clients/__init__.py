"""`python -m benchmarks slow-clients`: normal traffic beside a thousand clients that move a byte at a time."""
