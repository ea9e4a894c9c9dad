"""Explanations of decisions, shadow policies and canaries."""
