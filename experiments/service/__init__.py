"""Load on a service that runs already: its URL, the requests, and turns of the policies of a running balancer."""
