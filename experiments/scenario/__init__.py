"""Scenarios: the file format, the packaged files, presets, overrides and fault timelines."""
