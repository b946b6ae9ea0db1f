"""Disturbs a farm at random moments; nothing may be lost, doubled or wrong: `python tools/chaos --help`."""
