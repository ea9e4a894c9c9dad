"""HTTP as bytes and frames, without connections: HTTP/1.1 in h1, HTTP/2 in h2, RPCs in grpc."""
