"""What runs on a rented machine beside its worker: checks, checkpoints, and the watch that ends the pod in time."""
