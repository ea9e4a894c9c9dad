"""Worker connections: pools, idle connections, dialling, names and transports."""
