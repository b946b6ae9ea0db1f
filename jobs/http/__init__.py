"""The HTTP service: `h3render serve`. Needs the extra `http`."""
