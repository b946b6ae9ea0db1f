"""Failures that people who run such queues have reported, as tests: the real command, a real Redis, real ranks."""
