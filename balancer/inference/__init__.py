"""Facts of requests for inference and of their answers, for policies that read prompts."""
