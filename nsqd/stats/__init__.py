"""The figures of a node, in all their formats."""
