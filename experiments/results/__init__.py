"""Results directories: their files, the plan of a campaign, and the policies that it began with."""
