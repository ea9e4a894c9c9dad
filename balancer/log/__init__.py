"""The access log: what a request was as a line, and how lines reach a file without delaying anybody."""
