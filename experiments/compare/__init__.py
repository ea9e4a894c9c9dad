"""Comparison of two result sets or two revisions."""
