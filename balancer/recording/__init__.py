"""What came in and how long it took, kept in a small file so that it can be played again."""
