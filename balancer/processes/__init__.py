"""The life of processes: one that serves, several as one unit, and one that takes another's place."""
