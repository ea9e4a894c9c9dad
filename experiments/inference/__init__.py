"""Simulated runs with inference engines as workers: prompts, routers and engines in virtual time."""
