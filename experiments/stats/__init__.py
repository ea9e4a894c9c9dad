"""Samples of a run, and the statistics of them: measures, estimates, comparisons."""
