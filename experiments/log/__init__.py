"""`experiments from-log`: the report of what a balancer really did, from its access log."""
