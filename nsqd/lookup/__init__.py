"""nsqlookupd: what it is told of this node, and what is learned from it."""
