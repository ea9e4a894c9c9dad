"""Switchback experiments on a running balancer with its own traffic."""
