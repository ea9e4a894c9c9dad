"""Statistics of runs: measures, estimates, comparisons."""
