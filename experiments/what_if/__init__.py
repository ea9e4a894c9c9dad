"""What-if simulation of recorded traffic: estimates of the workers, and the answer."""
