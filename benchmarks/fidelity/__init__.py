"""`python -m benchmarks fidelity`: the same scenarios measured on real processes and simulated, side by side."""
