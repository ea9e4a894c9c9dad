"""What the benchmarks share: compared proxies, their processes and files, load generators, options and verdicts."""
