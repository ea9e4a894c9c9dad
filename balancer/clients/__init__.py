"""Everything on the side of the clients: the socket, a connection from first byte to last, its turns."""
