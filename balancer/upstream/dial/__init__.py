"""Ways to a worker: names, addresses, connects, and the watch of a route to a region."""
