"""HTTP routes: which requests go to which cluster, are redirected, or get a fixed response."""
