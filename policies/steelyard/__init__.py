"""Steelyard, the default policy: the endpoint of least cost, in whatever region."""
