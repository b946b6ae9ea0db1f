"""Calls the URLs that clients have left with their jobs, when those end. `delivery` does it, the rest is its parts."""
