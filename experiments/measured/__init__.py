"""Measured runs: a fresh fleet of workers and a balancer for each run, and the faults during the load."""
