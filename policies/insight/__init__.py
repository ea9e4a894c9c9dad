"""Insight into decisions: explanations, shadow policies and canaries."""
