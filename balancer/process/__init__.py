"""Processes: signals, supervisor and sibling processes, shared counters, hot restart."""
