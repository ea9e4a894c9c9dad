"""What all rooms need of the machine and the terminal: processes, ports, processor time, output, versions."""
