"""Overload: the wait queue, load shedding, rests, token buckets, hedging and the retry budget."""
