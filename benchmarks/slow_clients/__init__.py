"""`python -m benchmarks slow-clients`: normal traffic beside a thousand clients that send or read one byte at a
time.
"""
