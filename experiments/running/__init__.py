"""Execution of a campaign in randomised blocks: its progress, and patience on a shared machine."""
