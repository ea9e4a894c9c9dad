"""`experiments from-log`: report of real traffic from a balancer's access log."""
