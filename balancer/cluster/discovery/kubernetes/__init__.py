"""Kubernetes source of endpoint discovery: the EndpointSlices of a Service, watched through the API server."""
