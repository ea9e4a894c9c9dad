"""Recordings of a running unit, read back: as arrivals, and as the answer to what would have been."""
