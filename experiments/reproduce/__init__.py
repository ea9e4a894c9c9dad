"""`experiments reproduce`: repeat published measurements and show both results side by side."""
