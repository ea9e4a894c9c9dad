"""Configuration: its tables, validation, runtime values and reload."""
