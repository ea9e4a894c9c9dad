"""What a server does with connections, found out by asking it: `balancer probe`."""
