"""Statistics per endpoint: latency histograms and averages, rates, and measurements of sibling processes."""
