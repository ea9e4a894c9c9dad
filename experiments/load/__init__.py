"""The load generators, and the rows that they write."""
