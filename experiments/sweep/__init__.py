"""Sweeps: simulate every policy under every scenario, knob and seed, on many processes or machines."""
