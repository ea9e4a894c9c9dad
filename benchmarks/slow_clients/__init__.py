"""`python -m benchmarks slow-clients`: normal traffic beside a thousand clients that move one byte at a time."""
