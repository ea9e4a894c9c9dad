"""Load-balancing policies that were published elsewhere, a file for each, named after its algorithm."""
