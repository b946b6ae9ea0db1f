"""A night of one batch on real processes, and a check of the morning's report: `python tools/overnight --help`."""
