"""Endpoint discovery by DNS, by a file, and by Kubernetes."""
