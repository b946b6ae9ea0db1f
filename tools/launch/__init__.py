"""What the launch tools are made of: docs/distributed.md."""
