"""Capacity search and load curves: the highest rate within an SLO, and latency by offered rate."""
