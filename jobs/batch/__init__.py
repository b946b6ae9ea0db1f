"""Many renders under one name: queued, watched, and told of in the morning."""
