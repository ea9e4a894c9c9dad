"""Overload: the wait queue, admission control, concurrency limits, hedging and the retry budget."""
