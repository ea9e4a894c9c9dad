"""What a second process of the unit brings: `python -m benchmarks processes`."""
