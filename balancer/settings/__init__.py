"""The configuration: its tables, how it is read and checked, what it comes to, and how it is read again."""
