"""Load generators and the samples that they write."""
