"""Report of real traffic from a balancer's access log."""
