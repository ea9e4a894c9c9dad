"""Clients of a process: records of their use, turns of expensive input, and budgets of bytes."""
