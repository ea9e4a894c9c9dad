"""Recordings of live traffic in a compact file, for replay and simulation."""
