"""Discrete-event simulation of the balancer with the same policies in virtual time."""
