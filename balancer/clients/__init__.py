"""What the clients of a process share: records of their use, turns of expensive input, and budgets of bytes."""
