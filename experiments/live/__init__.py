"""`experiments live`: compare policies on a running balancer with its own traffic."""
