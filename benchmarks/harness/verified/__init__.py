"""Verified load: every request and response follows from a number, and workers record each POST they execute."""
