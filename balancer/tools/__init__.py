"""Commands beside the server: the probe of workers, and the sidecar."""
