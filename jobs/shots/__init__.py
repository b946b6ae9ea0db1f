"""A file of shots, read and checked. Knows no Redis and no store."""
