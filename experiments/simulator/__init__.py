"""The same policies in virtual time: what a fleet would do, worked out instead of waited for."""
