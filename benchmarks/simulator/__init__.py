"""Speed of the simulator beside SimPy, and its results beside closed forms of queueing theory."""
