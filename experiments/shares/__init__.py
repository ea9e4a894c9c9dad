"""`experiments shares`: who gets the requests when an endpoint is new, fails, is slow, or a region is lost."""
