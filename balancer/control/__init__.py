"""What an operator sees and orders: status, metrics, endpoints, over the control plane under /-/."""
