"""What a second process of the unit brings: `experiments processes`."""
