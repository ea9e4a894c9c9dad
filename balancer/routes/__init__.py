"""HTTP routes: which requests go to which pool, are redirected, or get a fixed response."""
