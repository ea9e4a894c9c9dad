"""`experiments reproduce`: the figures that others have published, measured again here, ours beside theirs."""
