"""`experiments rolling`: workers restarted, the unit reloaded and replaced, under load."""
