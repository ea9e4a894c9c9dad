"""Recordings of a running balancer, and recorded arrivals."""
