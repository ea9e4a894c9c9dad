"""What a reader sees: tables, figures and pages, from the files of a campaign alone."""
