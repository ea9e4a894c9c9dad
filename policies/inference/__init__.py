"""Policies for inference servers: what each endpoint has cached of prompts, tokens that wait there, and the rules."""
