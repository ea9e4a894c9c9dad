"""Tables, figures and pages of a report, generated from the files of a campaign alone."""
