"""`experiments run`: run a scenario in randomised blocks and report the results."""
