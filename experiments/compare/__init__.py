"""`experiments compare`: two result sets, or two revisions, held against each other."""
