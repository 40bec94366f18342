"""The cluster as it is shown: what nodes have said, joined, and how it went over time."""
