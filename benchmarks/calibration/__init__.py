"""`python -m benchmarks calibration`: rate of false verdicts, from campaigns with known truth."""
