"""Harness of all benchmarks: session frame, options, bounds, blocks, peers and their configuration, loads, CPU time."""
