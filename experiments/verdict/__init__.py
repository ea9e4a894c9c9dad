"""The verdict of a campaign: what competes, the evidence, the winner, and the sentences that state them."""
