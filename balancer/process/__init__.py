"""Processes: signals, several workers of one balancer, shared counters, hot restart."""
