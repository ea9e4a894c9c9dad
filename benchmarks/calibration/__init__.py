"""`python -m benchmarks calibration`: how often a verdict is false, by campaigns whose truth is known."""
