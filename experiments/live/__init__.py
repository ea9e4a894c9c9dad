"""Policies compared on a unit that runs, with the traffic that it has."""
