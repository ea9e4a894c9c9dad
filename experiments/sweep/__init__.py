"""Sweeps: every policy under every scenario, knob and seed, over as many processes or machines as there are."""
