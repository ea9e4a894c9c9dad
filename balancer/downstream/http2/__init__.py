"""HTTP/2 from clients: connections, their streams, and the translation to the HTTP/1.1 of the data path."""
