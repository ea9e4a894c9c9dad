"""Emulated inference server: a model of its engine, and an OpenAI-compatible HTTP server in front of it."""
