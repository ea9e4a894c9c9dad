"""`experiments verdicts`: how often a verdict is false, by campaigns whose truth is known."""
