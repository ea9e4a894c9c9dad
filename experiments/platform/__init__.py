"""Machine and terminal, for all folders: processes, ports, processor time, output, versions."""
