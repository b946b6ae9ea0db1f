"""The report on a batch: figures, a page and a table."""
