"""HTTP/2 without I/O: frames, streams, flow control, and the limits of a connection, for clients and for workers."""
