"""`balancer probe`: find out a server's keep-alive, idle timeout and HTTP/2 support."""
