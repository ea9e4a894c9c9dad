"""Access log: entries, formats, and output in a thread."""
