"""What people change: planned, confirmed, done on every node, written down."""
