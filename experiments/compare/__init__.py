"""`experiments compare`: compare two result sets or two revisions."""
