"""Read recordings of a running balancer, as arrivals and for what-if simulations."""
