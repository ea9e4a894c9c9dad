"""`experiments run`: a scenario, its randomised blocks of runs, and what they say."""
