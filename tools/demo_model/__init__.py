"""A small H3 that draws: its training data, its training, and its files."""
