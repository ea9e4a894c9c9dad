"""Readers of recorded traffic: recordings and access logs of the balancer, and arrival instants."""
