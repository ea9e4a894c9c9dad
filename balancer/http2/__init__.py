"""HTTP/2 to workers: frames, streams, flow control and the connection that carries them."""
