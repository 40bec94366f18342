"""A node's statistics, in each of their formats."""
