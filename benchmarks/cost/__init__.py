"""`python -m benchmarks cost`: CPU time per forwarded request, latency and memory, beside other proxies."""
