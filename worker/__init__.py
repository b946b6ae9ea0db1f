"""One machine: takes jobs from the queue, keeps the rank processes, ships the output."""
