"""Administration under /-/: access, status, metrics, endpoint and policy commands."""
