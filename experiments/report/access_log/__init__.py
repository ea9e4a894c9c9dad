"""Report of real traffic from an access log of the balancer."""
