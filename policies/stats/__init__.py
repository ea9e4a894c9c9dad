"""Statistics per endpoint: latency histograms and averages, rates, and what other processes measured."""
