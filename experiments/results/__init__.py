"""Results of a scenario: the results directory, its summary and the verdict."""
