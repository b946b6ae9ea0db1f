"""Measures what a render is made of on this machine, beside what others would need for the same."""
