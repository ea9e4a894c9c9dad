"""Benchmarks and checks of Steelyard itself. They are run from a checkout and are not installed."""
