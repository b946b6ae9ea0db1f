"""Rented machines: RunPod's API with guards, and what supervisors need on machines of one's own."""
