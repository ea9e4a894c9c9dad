"""Execution of a scenario in randomised blocks, and the measured world: a fleet of processes per run."""
